"""Average gradients over the ranks as they come, each rank receiving its piece."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from pipeline.parallel.fsdp_units import Flat
from pipeline.parallel.lanes import Lane, Pending


class Scattering:
    """Reduce-scatter a flat buffer of gradients once all of them have come; add each rank's piece to its shards'.

    At most two buffers of gradients exist at a time: one that fills, and the one before it, which is on its way.
    """

    def __init__(self, lane: Lane):
        self._lane = lane
        self._filling: dict[Flat, Tensor] = {}
        self._arrived: dict[Flat, set[int]] = {}
        # What is on its way, with the tensors that must stay until it has arrived.
        self._sent: tuple[Pending, tuple[Tensor, ...]] | None = None
        self._absent: list[Parameter] = []

    @torch.no_grad()
    def add(self, flat: Flat, index: int) -> None:
        """Take the gradient of a full parameter; send the buffer if it was the last."""
        if flat.layout.is_sent_as_it_is:
            self._send(flat, _taken_gradient(flat, index).reshape(-1))
            return
        self._fill(flat, index)
        if len(self._arrived[flat]) == len(flat.fulls):
            self._send_filled(flat)

    @torch.no_grad()
    def finish(self, flats: Sequence[Flat]) -> list[Parameter]:
        """Send what has come of incomplete buffers, and wait for all; return shards that had no gradient to send.

        Those got a gradient of zeros here, because the rest of their buffer was sent.
        """
        for flat in flats:
            for index, full in enumerate(flat.fulls):
                if full.grad is not None:  # of a pass without communication
                    self.add(flat, index)
            if flat in self._filling:
                self._fill_up(flat)
                self._send_filled(flat)
        self._settle()
        absent, self._absent = self._absent, []
        return absent

    def discard(self) -> None:
        """Drop all gradients that are on their way or wait for others."""
        self._settle()
        self._filling, self._arrived, self._absent = {}, {}, []

    def _fill(self, flat: Flat, index: int) -> None:
        if flat not in self._filling:
            size, device = flat.layout.elements, flat.piece.device
            self._filling[flat] = torch.empty(size, dtype=flat.compute_dtype, device=device)
            self._arrived[flat] = set()
        view = flat.view_of_full(self._filling[flat], index)
        if index in self._arrived[flat]:  # from an earlier backward pass that did not complete the buffer
            view.add_(_taken_gradient(flat, index))
        else:
            view.copy_(_taken_gradient(flat, index))
            self._arrived[flat].add(index)

    def _fill_up(self, flat: Flat) -> None:
        for index, shard in enumerate(flat.shards):
            if index not in self._arrived[flat]:
                flat.view_of_full(self._filling[flat], index).zero_()
                if shard.grad is None:
                    self._absent.append(shard)

    def _send_filled(self, flat: Flat) -> None:
        del self._arrived[flat]
        self._send(flat, self._filling.pop(flat))

    def _send(self, flat: Flat, full: Tensor) -> None:
        """Start to average a flat buffer; the shards' gradients are views of the result, or it is added to them."""
        self._settle()
        operation = dist.ReduceOp.AVG
        if dist.get_backend() != dist.Backend.NCCL:
            # Gloo divides the sum, which might overflow in fp16.
            full, operation = full / dist.get_world_size(), dist.ReduceOp.SUM
        result = torch.empty_like(flat.piece)
        received = result if result.dtype == full.dtype else full.new_empty(result.shape)
        after = [] if received is result else [partial(result.copy_, received)]
        views = flat.split(result)
        before = [shard.grad for shard in flat.shards]
        for shard, view, gradient in zip(flat.shards, views, before, strict=True):
            if gradient is None:
                shard.grad = view
            else:
                after.append(partial(gradient.add_, view))
        collective = partial(dist.reduce_scatter_tensor, received, full, op=operation)
        pending = self._lane.start(collective, None, partial(_run_all, after) if after else None)
        self._sent = pending, (full, received, result)

    def _settle(self) -> None:
        """Wait for the buffer that is on its way, which has had the time of a unit's backward pass."""
        if self._sent is not None:
            pending, _ = self._sent
            pending.wait()
            self._sent = None


def _taken_gradient(flat: Flat, index: int) -> Tensor:
    gradient, flat.fulls[index].grad = flat.fulls[index].grad, None
    assert gradient is not None, f"{flat.names[index]} has no gradient"
    return gradient


@torch.no_grad()
def _run_all(calls: Sequence[Callable[[], object]]) -> None:
    for call in calls:
        call()
