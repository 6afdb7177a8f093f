"""The collectives that torch.distributed is given, and their bytes, seen where every caller passes: the dispatcher."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.compat.torch_private import TorchDispatchMode, operator_name, tensors_in


@dataclass(frozen=True)
class Collective:
    """One call: its name in c10d ("allreduce", "broadcast", ...), its payload as nccl-tests counts it, its dtype."""

    name: str
    payload_bytes: int
    dtype: torch.dtype


class CollectiveLog(TorchDispatchMode):
    """Note every collective that starts inside this context, in `calls`.

    Those that autograd's hooks start and those of torch's own C++ code are among them. A collective is a call, however
    many messages the backend makes of it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Note the operator where it is a collective, and run it."""
        # What has no tensor, like a split of the group, moves no data.
        if function.namespace == "c10d" and (tensors := tensors_in(args)):
            name = operator_name(function).removeprefix("c10d::").strip("_")
            # The largest argument: a gather's output and a scatter's input hold all ranks' parts.
            payload_bytes = max(sum(tensor.nbytes for tensor in tensors_in(argument)) for argument in args)
            self.calls.append(Collective(name, payload_bytes, tensors[0].dtype))
        return function(*args, **(kwargs or {}))


def total_bytes(calls: Iterable[Collective]) -> int:
    """Add up the payloads."""
    return sum(call.payload_bytes for call in calls)
