"""Average the gradients of a unit over the ranks, each rank receiving its piece."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from pipeline.compat.torch_private import copy_all
from pipeline.parallel.fsdp_units import Flat, Unit
from pipeline.parallel.lanes import Lane, Pending
from pipeline.parallel.replicas import refuse_sparse


class Scattering:
    """Reduce-scatter the units' gradients, one buffer at a time; add each rank's piece to its shards' gradients."""

    def __init__(self, lane: Lane):
        self._lane = lane
        self._backend_averages = dist.get_backend() == dist.Backend.NCCL
        self._operation = dist.ReduceOp.AVG if self._backend_averages else dist.ReduceOp.SUM
        # The running collective, with the tensors that must stay alive until it ends.
        self._sent: tuple[Pending, tuple[Tensor, ...]] | None = None
        # Shards for which this rank has sent only zeros, because it had no gradient.
        self._absent: dict[Parameter, None] = {}
        # One of the shards that got a gradient since the last finish.
        self._received: Parameter | None = None

    def send(self, unit: Unit) -> None:
        """Send the gradients of a unit whose backward pass is over, with zeros for those missing on this rank.

        Other ranks may have them, and all ranks must start the same collectives in the same order.
        """
        unit.went_backward = False
        for flat in unit.flats:
            if flat.is_trained:
                self._note_absent(flat)
                self._send(flat)

    def finish(self, units: Iterable[Unit]) -> list[Parameter]:
        """Send the remaining gradients, wait for all, and return the shards for which this rank had none."""
        for unit in units:
            if unit.went_backward:
                self.send(unit)
            else:
                unit.refuse_gradients()
        self.settle()
        absent, self._absent, self._received = list(self._absent), {}, None
        return absent

    def discard(self) -> None:
        """Wait for the running collective, and forget which gradients were sent."""
        self.settle()
        self._absent, self._received = {}, None

    def refuse_unfinished(self) -> None:
        """Raise RuntimeError if gradients were dropped before all of them were sent."""
        if self._received is not None and self._received.grad is None:
            raise RuntimeError(
                "gradients were dropped before finish_gradient_synchronization(): call it between the backward pass "
                "and the optimizer's step, or discard_gradients() to start over"
            )

    def settle(self) -> None:
        """Wait for the running collective, which has had a unit's backward pass to finish."""
        if self._sent is not None:
            pending, _ = self._sent
            pending.wait()
            self._sent = None

    def _note_absent(self, flat: Flat) -> None:
        for full, shard in zip(flat.fulls, flat.shards, strict=True):
            if full.grad is not None:
                self._absent.pop(shard, None)
            elif shard.grad is None:
                self._absent[shard] = None

    def _send(self, flat: Flat) -> None:
        self.settle()
        whole = _taken_gradients(flat)
        if not self._backend_averages:  # gloo would divide the sum, which might overflow in fp16
            whole = whole / dist.get_world_size()
        result = torch.empty_like(flat.piece)
        received = result if result.dtype == whole.dtype else whole.new_empty(result.shape)
        after: list[Callable[[], object]] = [] if received is result else [partial(result.copy_, received)]
        after += _added(flat, result)
        collective = partial(dist.reduce_scatter_tensor, received, whole, op=self._operation)
        pending = self._lane.start(collective, None, partial(_run_all, after) if after else None)
        self._sent, self._received = (pending, (whole, received, result)), flat.shards[0]


def _taken_gradients(flat: Flat) -> Tensor:
    """Take the full parameters' gradients as one flat buffer, with zeros for missing ones."""
    gradients: list[Tensor] = []
    for name, full in zip(flat.names, flat.fulls, strict=True):
        refuse_sparse(full, name)
        gradients.append(torch.zeros_like(full) if full.grad is None else full.grad)
        full.grad = None
    if flat.layout.is_sent_as_it_is:
        return gradients[0].reshape(-1)
    whole = torch.empty(flat.layout.elements, dtype=flat.compute_dtype, device=flat.piece.device)
    copy_all(flat.split_whole(whole), gradients)
    return whole


def _added(flat: Flat, result: Tensor) -> list[Callable[[], object]]:
    """Make the parts of a piece the shards' gradients; return calls that add to gradients already there."""
    additions: list[Callable[[], object]] = []
    for shard, part in zip(flat.shards, flat.split(result), strict=True):
        if shard.grad is None:
            shard.grad = part
        else:
            additions.append(partial(shard.grad.add_, part))
    return additions


def _run_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
