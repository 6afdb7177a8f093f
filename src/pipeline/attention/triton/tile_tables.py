"""The tiles of the Triton kernels: tables for each kind of GPU, by the shared memory that a program may use there.

Hopper's were timed on an H200, the others only compiled; docs/attention-kernels.md lists what was tried.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pipeline.attention.triton.gpu import HOPPER, KIB, Gpu


@dataclass(frozen=True)
class TileConfig:
    """Tile sizes and launch options of one kernel."""

    block_queries: int
    block_keys: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None


@dataclass(frozen=True)
class BackwardConfig:
    """The tiles of a backward pass: if `query` is None, the kernel of dk and dv sums dq too.

    short: the tiles of the one kernel for short sequences.
    """

    key_value: TileConfig
    query: TileConfig | None
    short: TileConfig


Table = Mapping[int, TileConfig]  # by the width of a tile
BackwardTable = Mapping[int, BackwardConfig]


@dataclass(frozen=True, eq=False)
class TileTables:
    """Tiles that fit into `shared_bytes` of shared memory; `tiles.Choices` picks those of a problem."""

    shared_bytes: int
    forward: Table
    forward_fp32: Table
    backward: BackwardTable
    backward_fp32: BackwardTable
    forward_not_many_keys: Table = field(default_factory=dict)
    forward_few_keys: Table = field(default_factory=dict)
    forward_one_tile: Table = field(default_factory=dict)
    backward_long: BackwardTable = field(default_factory=dict)


_HOPPER_BACKWARD = {
    16: BackwardConfig(TileConfig(64, 64, 4, 3), None, TileConfig(64, 64, 4, 2)),
    32: BackwardConfig(TileConfig(64, 64, 4, 2, 128), None, TileConfig(64, 64, 4, 2)),
    64: BackwardConfig(TileConfig(64, 64, 4, 3, 168), TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 2)),
    128: BackwardConfig(TileConfig(64, 64, 4, 2), TileConfig(128, 64, 8, 3), TileConfig(64, 64, 8, 2)),
    256: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(64, 32, 8, 2), TileConfig(32, 64, 8, 1)),
}
HOPPER_TILES = TileTables(
    shared_bytes=227 * KIB,
    forward={
        16: TileConfig(64, 128, 4, 3),
        32: TileConfig(64, 128, 4, 3),
        64: TileConfig(64, 128, 4, 3, 168),
        128: TileConfig(64, 128, 4, 1, 168),
        256: TileConfig(128, 64, 8, 2),
    },
    forward_not_many_keys={64: TileConfig(64, 128, 4, 2, 168)},
    forward_few_keys=dict.fromkeys((16, 32, 64, 128), TileConfig(64, 64, 4, 3)),
    forward_one_tile=dict.fromkeys((16, 32, 64, 128), TileConfig(64, 128, 4, 2)),
    forward_fp32={
        16: TileConfig(64, 64, 4, 2),
        32: TileConfig(64, 64, 4, 2),
        64: TileConfig(128, 64, 8, 3),
        128: TileConfig(128, 64, 8, 1),
        256: TileConfig(64, 32, 4, 1),
    },
    backward=_HOPPER_BACKWARD,
    backward_long={
        64: replace(_HOPPER_BACKWARD[64], key_value=TileConfig(128, 64, 4, 2), query=TileConfig(128, 64, 4, 3)),
    },
    backward_fp32={
        16: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
        32: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
        64: BackwardConfig(TileConfig(64, 32, 4, 2), None, TileConfig(32, 32, 4, 1)),
        128: BackwardConfig(TileConfig(32, 32, 4, 1), None, TileConfig(32, 32, 8, 1)),
        256: BackwardConfig(TileConfig(32, 16, 8, 1), TileConfig(16, 32, 8, 1), TileConfig(16, 16, 8, 1)),
    },
)
# For all NVIDIA GPUs but Hopper: Hopper's tiles would fit a B200, but spill there. Only compiled, not timed.
SMALL_TILES = TileTables(
    shared_bytes=99 * KIB,
    forward={
        16: TileConfig(128, 64, 4, 2),
        32: TileConfig(128, 64, 4, 2),
        64: TileConfig(64, 64, 4, 3),
        128: TileConfig(128, 32, 8, 2),
        256: TileConfig(64, 64, 8, 1),
    },
    forward_fp32={
        16: TileConfig(64, 64, 4, 2),
        32: TileConfig(64, 64, 4, 2),
        64: TileConfig(128, 32, 8, 2),
        128: TileConfig(32, 32, 4, 1),
        256: TileConfig(16, 64, 8, 1),
    },
    backward={
        16: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(64, 64, 4, 2)),
        32: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(64, 64, 4, 2)),
        64: BackwardConfig(TileConfig(32, 64, 4, 2), TileConfig(64, 64, 4, 2), TileConfig(32, 64, 4, 2)),
        128: BackwardConfig(TileConfig(64, 64, 8, 2), TileConfig(64, 64, 8, 2), TileConfig(64, 64, 8, 1)),
        256: BackwardConfig(TileConfig(32, 32, 8, 1), TileConfig(64, 32, 8, 1), TileConfig(32, 32, 8, 1)),
    },
    backward_fp32={
        16: BackwardConfig(TileConfig(32, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
        32: BackwardConfig(TileConfig(32, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
        64: BackwardConfig(TileConfig(32, 32, 4, 2), None, TileConfig(32, 32, 4, 1)),
        128: BackwardConfig(TileConfig(32, 16, 4, 1), None, TileConfig(16, 16, 4, 1)),
        256: BackwardConfig(TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1), TileConfig(16, 16, 8, 1)),
    },
)
# For AMD's matrix cores, which multiply fp32 natively. Only compiled, for gfx942, not timed.
AMD_TILES = TileTables(
    shared_bytes=64 * KIB,
    forward={
        16: TileConfig(128, 64, 4, 2),
        32: TileConfig(128, 64, 4, 2),
        64: TileConfig(128, 64, 4, 2),
        128: TileConfig(128, 64, 8, 2),
        256: TileConfig(64, 32, 4, 1),
    },
    forward_fp32={
        16: TileConfig(64, 64, 4, 2),
        32: TileConfig(64, 64, 4, 2),
        64: TileConfig(128, 32, 8, 2),
        128: TileConfig(64, 32, 4, 1),
        256: TileConfig(32, 32, 4, 1),
    },
    backward={
        16: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(64, 64, 4, 2)),
        32: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(64, 64, 4, 2)),
        64: BackwardConfig(TileConfig(64, 64, 4, 2), TileConfig(64, 64, 4, 2), TileConfig(64, 64, 4, 2)),
        128: BackwardConfig(TileConfig(32, 64, 4, 1), TileConfig(64, 32, 4, 1), TileConfig(32, 32, 4, 1)),
        256: BackwardConfig(TileConfig(32, 32, 4, 1), TileConfig(32, 32, 4, 1), TileConfig(32, 32, 4, 1)),
    },
    backward_fp32={
        16: BackwardConfig(TileConfig(32, 64, 4, 1), None, TileConfig(32, 32, 4, 1)),
        32: BackwardConfig(TileConfig(32, 64, 4, 1), None, TileConfig(32, 32, 4, 1)),
        64: BackwardConfig(TileConfig(32, 32, 4, 1), None, TileConfig(32, 32, 4, 1)),
        128: BackwardConfig(TileConfig(32, 16, 4, 1), None, TileConfig(32, 16, 4, 1)),
        256: BackwardConfig(TileConfig(16, 32, 4, 1), TileConfig(32, 16, 4, 1), TileConfig(16, 16, 4, 1)),
    },
)


def tables_for(gpu: Gpu) -> TileTables:
    """Return the largest tables that suit a GPU's matrix units and fit into its shared memory."""
    if gpu.vendor == "amd":
        suiting = [AMD_TILES]
    elif gpu.vendor == "interpreter" or gpu.capability == HOPPER:
        suiting = [HOPPER_TILES, SMALL_TILES, AMD_TILES]
    else:
        suiting = [SMALL_TILES, AMD_TILES]
    return next(tables for tables in suiting if tables.shared_bytes <= gpu.shared_bytes)
