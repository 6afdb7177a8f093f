"""Broadcast tensors, each from the rank that changed it."""

from collections.abc import Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from pipeline.compat.torch_private import coalescing


@torch.no_grad()
def broadcast_from_owners(tensors: Sequence[tuple[Tensor, int]]) -> None:
    """Overwrite each tensor, in place, with its owner's values. A collective.

    On a GPU the current stream waits, not the host.
    """
    if not tensors:
        return
    detached = [tensor.detach() for tensor, _ in tensors]
    # NCCL refuses non-contiguous tensors except channels_last; gloo sends the memory as is, gaps included.
    views = [tensor if tensor.is_contiguous() else _in_memory_order(tensor) for tensor in detached]
    buffers = [view.contiguous() for view in views]
    _broadcast_all([(buffer, owner) for buffer, (_, owner) in zip(buffers, tensors, strict=True)])
    for view, buffer in zip(views, buffers, strict=True):
        if buffer is not view:  # a copy, because the tensor has gaps
            view.copy_(buffer)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """View a tensor with its dimensions in memory order: contiguous if it has no gaps."""
    return tensor.permute(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))


def _broadcast_all(tensors: Sequence[tuple[Tensor, int]]) -> None:
    if dist.get_backend() != dist.Backend.NCCL:
        for work in list(_broadcasts(tensors)):
            work.wait()
        return
    # One call for all: NCCL spreads them over its channels, so that all owners send at the same time.
    with coalescing(tensors[0][0].device) as together:
        for _ in _broadcasts(tensors):
            pass
    together.wait()


def _broadcasts(tensors: Iterable[tuple[Tensor, int]]) -> Iterator[dist.Work]:
    for tensor, owner in tensors:
        yield dist.broadcast(tensor, src=owner, async_op=True)
