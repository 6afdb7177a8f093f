"""Declare the collectives: the call, the buffer sizes and the expected result of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

# Used in place of a rank, for the sum over all ranks.
SUM = -1
# The rank whose numbers it holds (or SUM), and the share from which they start.
Piece = tuple[int, int]


@dataclass(frozen=True)
class Collective:
    """One collective of torch.distributed.

    call(source, target, rank, ranks): runs it; in place, both are one tensor. sends_share, gets_share: whether the
    source, or the target, holds one rank's share of the size instead of the whole size. expected(rank, ranks): the
    pieces, of equal length, that the target must consist of.
    """

    call: Callable[[Tensor, Tensor, int, int], object]
    expected: Callable[[int, int], Sequence[Piece]]
    sends_share: bool = False
    gets_share: bool = False


def _ring(source: Tensor, target: Tensor, rank: int, ranks: int) -> None:
    """Send to the next rank while receiving from the previous one."""
    sends = dist.P2POp(dist.isend, source, (rank + 1) % ranks)
    receives = dist.P2POp(dist.irecv, target, (rank - 1) % ranks)
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


COLLECTIVES = {
    "all_reduce": Collective(
        call=lambda source, _target, _rank, _ranks: dist.all_reduce(source),
        expected=lambda _rank, _ranks: [(SUM, 0)],
    ),
    "all_gather": Collective(
        call=lambda source, target, _rank, _ranks: dist.all_gather_into_tensor(target, source),
        expected=lambda _rank, ranks: [(other, 0) for other in range(ranks)],
        sends_share=True,
    ),
    "reduce_scatter": Collective(
        call=lambda source, target, _rank, _ranks: dist.reduce_scatter_tensor(target, source),
        expected=lambda rank, _ranks: [(SUM, rank)],
        gets_share=True,
    ),
    "all_to_all": Collective(
        call=lambda source, target, _rank, _ranks: dist.all_to_all_single(target, source),
        expected=lambda rank, ranks: [(other, rank) for other in range(ranks)],
    ),
    "broadcast": Collective(
        call=lambda source, _target, _rank, _ranks: dist.broadcast(source, src=0),
        expected=lambda _rank, _ranks: [(0, 0)],
    ),
    "send_recv": Collective(
        call=_ring,
        expected=lambda rank, ranks: [((rank - 1) % ranks, 0)],
    ),
}
