"""Log the collectives of torch.distributed and their bytes at the dispatcher, which every caller goes through."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from pipeline.compat.torch_private import TorchDispatchMode, operator_name, tensors_in

# Names of the functional collectives, with which DTensors are redistributed, and c10d's names for the same.
FUNCTIONAL = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "allgather_base",
    "reduce_scatter_tensor": "reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "broadcast": "broadcast",
}


@dataclass(frozen=True)
class Collective:
    """One call: its name in c10d ("allreduce", "broadcast", ...), its payload as nccl-tests counts it, its dtype."""

    name: str
    payload_bytes: int
    dtype: torch.dtype


class CollectiveLog(TorchDispatchMode):
    """Record in `calls` every collective that starts inside this context.

    This includes collectives started by autograd's hooks, by torch's own C++ code and by DTensors. A collective is one
    call, however many messages the backend sends for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Collective] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        """Run the operator, and record it if it is a collective."""
        # A DTensor's operator is decomposed first; the collectives that it sends come back here.
        if any(issubclass(each, DTensor) for each in types):
            return NotImplemented
        result = function(*args, **(kwargs or {}))
        # A call without tensors, such as splitting the group, moves no data.
        if (name := _collective(function)) and (tensors := tensors_in(args)):
            # The largest argument is the payload: a gather's output and a scatter's input hold all ranks' parts.
            sizes = (sum(tensor.nbytes for tensor in tensors_in(argument)) for argument in (*args, result))
            self.calls.append(Collective(name, max(sizes), tensors[0].dtype))
        return result


def _collective(function: Any) -> str | None:
    """Return c10d's name of a collective; None for any other operator."""
    if function.namespace not in ("c10d", "_c10d_functional"):
        return None
    name = operator_name(function).partition("::")[2].strip("_")
    return name if function.namespace == "c10d" else FUNCTIONAL.get(name.removesuffix("_coalesced"))


def total_bytes(calls: Iterable[Collective]) -> int:
    """Add up the payloads."""
    return sum(call.payload_bytes for call in calls)
