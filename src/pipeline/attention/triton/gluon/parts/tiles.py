"""The tiles of the kernels that multiply fp32 in parts, by width: as large as shared memory and registers allow."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.attention.triton.gluon.tiles import GROUP_ROWS


@dataclass(frozen=True)
class PartsForwardTiles:
    """The tiles of the forward kernel: of 128 queries, two warpgroups having 64 each."""

    block_keys: int = 64
    registers: int = 240
    block_queries: ClassVar[int] = 2 * GROUP_ROWS


@dataclass(frozen=True)
class PartsQueryTiles:
    """The tiles of the kernel for dq: of 64 queries, whose blocks of keys two warpgroups take in turn."""

    block_keys: int
    registers: int = 240
    block_queries: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class PartsKeyValueTiles:
    """The tiles of the kernel for dk and dv, of 64 keys, and of that for dq."""

    block_queries: int
    query: PartsQueryTiles
    registers: int = 240
    block_keys: ClassVar[int] = GROUP_ROWS


FORWARD = {64: PartsForwardTiles(), 128: PartsForwardTiles()}
BACKWARD = {
    64: PartsKeyValueTiles(block_queries=64, query=PartsQueryTiles(block_keys=64)),
    128: PartsKeyValueTiles(block_queries=32, query=PartsQueryTiles(block_keys=32)),
}
# With fewer queries or keys the plain kernels are as fast or faster.
SHORTEST = {64: 256, 128: 256}
