"""Tiles of the kernels that multiply fp32 in parts, by width: as large as shared memory and registers allow."""

from dataclasses import dataclass
from typing import ClassVar

from pipeline.attention.triton.gluon.tiles import GROUP_ROWS


@dataclass(frozen=True)
class PartsForwardTiles:
    """Tiles of the forward kernel: 128 queries, 64 per warpgroup."""

    block_keys: int = 64
    registers: int = 240
    block_queries: ClassVar[int] = 2 * GROUP_ROWS


@dataclass(frozen=True)
class PartsQueryTiles:
    """Tiles of the kernel for dq: 64 queries, whose blocks of keys alternate between two warpgroups."""

    block_keys: int
    registers: int = 240
    block_queries: ClassVar[int] = GROUP_ROWS


@dataclass(frozen=True)
class PartsKeyValueTiles:
    """Tiles of the kernel for dk and dv, with 64 keys, and of the kernel for dq."""

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
