"""The tiles of the Gluon kernels, by the width of a tile, which follows from head_dim.

The tables are for an H200; docs/attention-kernels.md tells what was tried, and what of it was measured.
"""

from dataclasses import dataclass
from typing import ClassVar

GROUP_ROWS = 64  # of a warpgroup: as many as one wgmma has


@dataclass(frozen=True)
class ForwardTiles:
    """The tiles of the forward kernel, whose arguments of these names its docstring explains."""

    groups: int
    block_keys: int
    stages: int
    registers: int
    o_in_q: bool = False

    @property
    def block_queries(self) -> int:
        """Count the queries of a tile."""
        return self.groups * GROUP_ROWS


@dataclass(frozen=True)
class NarrowForwardTiles:
    """The tiles of the forward kernel of one warpgroup, of which so many programs share a multiprocessor."""

    block_keys: int
    registers: int
    programs_per_sm: int
    block_queries: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class BackwardTiles:
    """The tiles of the backward kernel: of 128 keys, two warpgroups having 64 each; columns in one part or in two."""

    block_queries: int
    registers: int
    width: int
    tail: int = 0
    block_keys: ClassVar[int] = 2 * GROUP_ROWS
    query: ClassVar[None] = None  # it sums dq as well, in memory


@dataclass(frozen=True)
class QueryTiles:
    """The tiles of the kernel for dq alone: of 128 queries, two warpgroups having 64 each, and 64 keys."""

    registers: int
    block_queries: ClassVar[int] = 2 * GROUP_ROWS
    block_keys: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class KeyValueTiles:
    """The tiles of the kernel for dk and dv alone, of 64 keys and queries, and of that for dq."""

    stages: int
    registers: int
    query: QueryTiles
    block_queries: ClassVar[int] = GROUP_ROWS
    block_keys: ClassVar[int] = GROUP_ROWS


# With fewer keys than LONG_KEYS: small programs begin and end sooner.
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
# And with fewer tiles than so many a multiprocessor, where they cut their loops into chunks.
LEAST_TILES_PER_SM = 0.75


def forward_tiles(width: int, n_keys: int, is_causal: bool) -> ForwardTiles | NarrowForwardTiles | None:
    """Return the tiles of the forward kernel for this width, number of keys and mask; None where there are none."""
    short = FORWARD_SHORT.get(width) if n_keys < (LONG_KEYS_CAUSAL if is_causal else LONG_KEYS) else None
    return short or FORWARD.get(width)


def backward_tiles(head_dim: int) -> BackwardTiles | KeyValueTiles | None:
    """Return the tiles of the backward kernel: the narrowest that head_dim fits; None below and above all."""
    if 2 * head_dim <= min(BACKWARD):
        return None
    return next((tiles for width, tiles in BACKWARD.items() if head_dim <= width), None)
