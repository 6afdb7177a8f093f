"""Tiles of the Gluon kernels, by tile width, which follows from head_dim.

The tables are for an H200; docs/attention-kernels.md lists what was tried and what was measured.
"""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.attention.triton.tiles import tile_width

GROUP_ROWS = 64  # per warpgroup: the rows of one wgmma


@dataclass(frozen=True)
class ForwardTiles:
    """Tiles of `hopper_forward_kernel`, whose docstring explains these names."""

    groups: int
    block_keys: int
    stages: int
    registers: int
    o_in_q: bool = False
    programs_per_sm: ClassVar[int] = 1

    @property
    def block_queries(self) -> int:
        """Count the queries of a tile."""
        return self.groups * GROUP_ROWS


@dataclass(frozen=True)
class NarrowForwardTiles:
    """Tiles of the forward kernel of one warpgroup; programs_per_sm: how many programs share an SM."""

    block_keys: int
    registers: int
    programs_per_sm: int
    block_queries: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class BackwardTiles:
    """Tiles of the backward kernel: 128 keys, 64 per warpgroup; columns in one part (width) or in two (and tail)."""

    block_queries: int
    registers: int
    width: int
    tail: int = 0
    block_keys: ClassVar[int] = 2 * GROUP_ROWS
    query: ClassVar[None] = None  # this kernel also sums dq, in memory


@dataclass(frozen=True)
class QueryTiles:
    """Tiles of the kernel for dq alone: 128 queries, 64 per warpgroup, and 64 keys."""

    registers: int
    block_queries: ClassVar[int] = 2 * GROUP_ROWS
    block_keys: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class KeyValueTiles:
    """Tiles of the kernel for dk and dv alone, 64 keys and 64 queries, and of the kernel for dq."""

    stages: int
    registers: int
    query: QueryTiles
    block_queries: ClassVar[int] = GROUP_ROWS
    block_keys: ClassVar[int] = GROUP_ROWS


# For fewer than LONG_KEYS keys, or LONG_KEYS_CAUSAL: small programs begin and end sooner.
FORWARD_SHORT: dict[int, ForwardTiles | NarrowForwardTiles] = {
    64: NarrowForwardTiles(block_keys=64, registers=128, programs_per_sm=4),
}
FORWARD: dict[int, ForwardTiles | NarrowForwardTiles] = {
    64: ForwardTiles(groups=3, block_keys=128, stages=2, registers=160),
    128: ForwardTiles(groups=2, block_keys=128, stages=2, registers=240),
    256: ForwardTiles(groups=2, block_keys=64, stages=2, registers=240, o_in_q=True),
}
BACKWARD: dict[int, BackwardTiles | KeyValueTiles] = {
    64: BackwardTiles(block_queries=128, registers=240, width=64),
    80: BackwardTiles(block_queries=64, registers=240, width=64, tail=16),
    96: BackwardTiles(block_queries=64, registers=240, width=64, tail=32),
    128: BackwardTiles(block_queries=64, registers=240, width=128),
    256: KeyValueTiles(stages=2, registers=240, query=QueryTiles(registers=240)),
}
LONG_KEYS, LONG_KEYS_CAUSAL = 2048, 8192
# With fewer queries or keys the plain kernels are as fast or faster.
SHORTEST = {64: 512, 128: 256, 256: 512}
# The same with fewer tiles per SM than this: there, the plain kernels cut their loops into chunks.
LEAST_TILES_PER_SM = 0.75


def forward_tiles(head_dim: int, n_keys: int, is_causal: bool) -> ForwardTiles | NarrowForwardTiles | None:
    """Return the tiles of the forward kernel for a head_dim, number of keys and mask, or None if there are none."""
    width = tile_width(head_dim)
    short = FORWARD_SHORT.get(width) if n_keys < (LONG_KEYS_CAUSAL if is_causal else LONG_KEYS) else None
    return short or FORWARD.get(width)


def backward_tiles(head_dim: int) -> BackwardTiles | KeyValueTiles | None:
    """Return the narrowest tiles of the backward kernel that head_dim fits; None if it is too small or too large."""
    if 2 * head_dim <= min(BACKWARD):
        return None
    return next((tiles for width, tiles in BACKWARD.items() if head_dim <= width), None)
