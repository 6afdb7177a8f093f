"""Bring tensors that different ranks have changed up to date everywhere."""

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.compat.torch_private import coalescing


@torch.no_grad()
def broadcast_from_owners(tensors: Sequence[tuple[Tensor, int]]) -> None:
    """Overwrite each tensor, in place, with the values that its rank holds. A collective.

    On a GPU it is the current stream that waits, not the host.
    """
    if not tensors:
        return
    detached = [tensor.detach() for tensor, _ in tensors]
    # NCCL refuses what is not contiguous, but for channels_last; gloo sends the memory as it lies, gaps included.
    views = [tensor if tensor.is_contiguous() else _in_memory_order(tensor) for tensor in detached]
    buffers = [view.contiguous() for view in views]
    _broadcast_all([(buffer, owner) for buffer, (_, owner) in zip(buffers, tensors, strict=True)])
    for view, buffer in zip(views, buffers, strict=True):
        if buffer is not view:  # but a copy, for there are gaps
            view.copy_(buffer)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """View a tensor with its dimensions in the order of its memory, which makes it contiguous if it has no gaps."""
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))


def _broadcast_all(tensors: Sequence[tuple[Tensor, int]]) -> None:
    if dist.get_backend() != dist.Backend.NCCL:
        for work in list(_broadcasts(tensors)):
            work.wait()
        return
    # One call for all, in place: NCCL spreads them over its channels, so that the owners send at the same time.
    with coalescing(tensors[0][0].device) as together:
        for _ in _broadcasts(tensors):
            pass
    together.wait()


def _broadcasts(tensors: Iterable[tuple[Tensor, int]]) -> Iterator[dist.Work]:
    for tensor, owner in tensors:
        yield dist.broadcast(tensor, src=owner, async_op=True)
