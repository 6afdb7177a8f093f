"""Make sure that every rank holds the same tensors before collectives rely on it."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor


def describe(named_tensors: Iterable[tuple[str, Tensor]]) -> list[str]:
    """Say in words what the ranks must agree on: a line a tensor, in order."""
    return [
        f"{name}: {tensor.dtype}, shape {tuple(tensor.shape)}, strides {tensor.stride()}, "
        f"{'trained' if tensor.requires_grad else 'frozen'}"
        for name, tensor in named_tensors
    ]


def check_same_on_all_ranks(what: str, own: list[str]) -> None:
    """Compare the lines of all ranks. A collective.

    Raises ValueError on every rank, so that none waits for another, where a rank's lines are not those of rank 0.
    """
    by_rank: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(by_rank, own)
    for rank, lines in enumerate(by_rank):
        if lines != by_rank[0]:
            raise ValueError(f"{what} differ between ranks: {_first_difference(by_rank[0], rank, lines)}")


def _first_difference(reference: list[str], rank: int, lines: list[str]) -> str:
    if len(lines) != len(reference):
        return f"rank 0 has {len(reference)}, rank {rank} has {len(lines)}"
    here, there = next(pair for pair in zip(reference, lines, strict=True) if pair[0] != pair[1])
    return f"rank 0 has {here!r}, rank {rank} has {there!r}"


@torch.no_grad()
def broadcast_from_rank_0(tensors: Iterable[Tensor]) -> None:
    """Overwrite each tensor, in place, with the values that rank 0 holds. A collective."""
    for tensor in tensors:
        contiguous = tensor.detach().contiguous()
        # As bytes: gloo does not know every dtype that a buffer may have.
        dist.broadcast(contiguous.reshape(-1).view(torch.uint8), src=0)
        if contiguous.data_ptr() != tensor.data_ptr():
            tensor.copy_(contiguous)
