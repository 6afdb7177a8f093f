"""Which tiles the Triton kernels use: by dtype and width, which follows from head_dim, and by how much work there is.

The tables are for an H200; docs/attention-kernels.md tells what was tried, and what of it was measured.
"""

from dataclasses import dataclass, replace

import torch
import triton

# Wide tiles of the backward pass have tensor descriptors however little there is to go through: without, they spill.
WIDE_BACKWARD = 128


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
    """The kernels of a backward pass: where `query` is None, the kernel of dk and dv sums dq too.

    short: the tiles of the one kernel for short sequences.
    """

    key_value: TileConfig
    query: TileConfig | None
    short: TileConfig


@dataclass(frozen=True)
class Chunking:
    """When a kernel's loop is cut into chunks, a program each: where it has fewer programs a multiprocessor than this.

    min_length: the fewest keys or queries of a chunk; shortest: the fewest of a sequence that is cut at all;
    length_in_one_wave: what a chunk has instead where that makes few chunks and all programs then run at once, one a
    multiprocessor.
    """

    programs_per_sm: int
    min_length: int
    shortest: int
    length_in_one_wave: int | None = None


_FORWARD = {
    16: TileConfig(64, 128, 4, 3),
    32: TileConfig(64, 128, 4, 3),
    64: TileConfig(64, 128, 4, 3, 168),
    128: TileConfig(64, 128, 4, 1, 168),
    256: TileConfig(128, 64, 8, 2),
}
_FORWARD_NOT_MANY_KEYS = {64: TileConfig(64, 128, 4, 2, 168)}
_FORWARD_FEW_KEYS = dict.fromkeys((16, 32, 64, 128), TileConfig(64, 64, 4, 3))
_FORWARD_ONE_TILE = dict.fromkeys((16, 32, 64, 128), TileConfig(64, 128, 4, 2))
_FORWARD_FP32 = {
    16: TileConfig(64, 64, 4, 2),
    32: TileConfig(64, 64, 4, 2),
    64: TileConfig(128, 64, 8, 3),
    128: TileConfig(128, 64, 8, 1),
    256: TileConfig(64, 32, 4, 1),
}
_BACKWARD = {
    16: BackwardConfig(TileConfig(64, 64, 4, 3), None, TileConfig(64, 64, 4, 2)),
    32: BackwardConfig(TileConfig(64, 64, 4, 2, 128), None, TileConfig(64, 64, 4, 2)),
    64: BackwardConfig(TileConfig(64, 64, 4, 3, 168), TileConfig(64, 64, 4, 3), TileConfig(64, 64, 4, 2)),
    128: BackwardConfig(TileConfig(64, 64, 4, 2), TileConfig(128, 64, 8, 3), TileConfig(64, 64, 8, 2)),
    256: BackwardConfig(TileConfig(32, 64, 8, 2), TileConfig(64, 32, 8, 2), TileConfig(32, 64, 8, 1)),
}
_BACKWARD_LONG = {
    64: replace(_BACKWARD[64], key_value=TileConfig(128, 64, 4, 2), query=TileConfig(128, 64, 4, 3)),
}
_BACKWARD_FP32 = {
    16: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
    32: BackwardConfig(TileConfig(64, 64, 4, 2), None, TileConfig(32, 32, 4, 1)),
    64: BackwardConfig(TileConfig(64, 32, 4, 2), None, TileConfig(32, 32, 4, 1)),
    128: BackwardConfig(TileConfig(32, 32, 4, 1), None, TileConfig(32, 32, 8, 1)),
    256: BackwardConfig(TileConfig(32, 16, 8, 1), TileConfig(16, 32, 8, 1), TileConfig(16, 16, 8, 1)),
}
MAX_HEAD_DIM = max(_FORWARD)


@triton.constexpr_function
def tile_width(head_dim: int) -> int:
    """Return how many columns the tiles have: the next power of two, and enough for a matrix product."""
    return max(16, triton.next_power_of_2(head_dim))


@dataclass(frozen=True, eq=False)
class Choices:
    """What plans go by: the tables above or tiles in their place, and thresholds of how much work there is.

    Choices compare by identity, which keeps looking up their plans cheap.

    gluon: whether the kernels in Gluon may be chosen (`kernel_sets`); all else is about the plain ones;
    forward_tiles, backward_tiles: these tiles whatever the dtype, the width and the number of keys;
    min_length_for_tma: with fewer keys or queries to go through, a program ends before its tensor descriptors pay;
    longest_short_sequence: up to here the backward pass is one kernel: repeating some work costs less than launching
    another; few_keys: a program of the forward pass that goes through fewer ends sooner with smaller tiles, loaded
    further ahead; one_tile: one whose keys fill more than half a tile of so many, and no more than it, with that;
    few_chunks: as many are put together in two steps (`kernels.chunks`); many_keys: at head_dim 64 a third program fits
    on a multiprocessor with one stage less, which hides how programs begin and end: from so many keys a program on,
    that takes less than what the stage hides; long_sequence: from here on the larger tiles of the backward pass at
    head_dim 64 gain more than the diagonal wastes of them.
    """

    gluon: bool = False
    forward_tiles: TileConfig | None = None
    backward_tiles: BackwardConfig | None = None
    forward_chunks: Chunking = Chunking(programs_per_sm=4, min_length=256, shortest=1024, length_in_one_wave=128)
    forward_chunks_fp32: Chunking = Chunking(programs_per_sm=8, min_length=256, shortest=512)
    backward_chunks: Chunking = Chunking(programs_per_sm=2, min_length=256, shortest=1024)
    backward_chunks_fp32: Chunking = Chunking(programs_per_sm=8, min_length=256, shortest=1024)
    min_length_for_tma: int = 1024
    longest_short_sequence: int = 1024
    few_keys: int = 1024
    one_tile: int = 128
    few_chunks: int = 8
    many_keys: int = 16384
    long_sequence: int = 16384

    def forward(self, dtype: torch.dtype, head_dim: int, n_keys: int) -> TileConfig:
        """Return the tiles of the forward kernel.

        n_keys: how many keys a program goes through; block_queries does not depend on it.
        """
        if self.forward_tiles is not None:
            return self.forward_tiles
        width = tile_width(head_dim)
        if dtype == torch.float32:
            return _FORWARD_FP32[width]
        exceptions = {}
        if self.one_tile // 2 < n_keys <= self.one_tile:
            exceptions = _FORWARD_ONE_TILE
        elif n_keys < self.few_keys:
            exceptions = _FORWARD_FEW_KEYS
        elif n_keys < self.many_keys:
            exceptions = _FORWARD_NOT_MANY_KEYS
        return exceptions.get(width, _FORWARD[width])

    def backward(self, dtype: torch.dtype, head_dim: int, n_keys: int) -> BackwardConfig:
        """Return the tiles of the backward kernels."""
        if self.backward_tiles is not None:
            return self.backward_tiles
        width = tile_width(head_dim)
        if dtype == torch.float32:
            return _BACKWARD_FP32[width]
        return _BACKWARD_LONG.get(width, _BACKWARD[width]) if n_keys >= self.long_sequence else _BACKWARD[width]

    def is_short(self, n_queries: int, n_keys: int) -> bool:
        """Tell whether the backward pass is one kernel."""
        return max(n_queries, n_keys) <= self.longest_short_sequence

    def forward_gains_by_tma(self, n_keys: int) -> bool:
        """Tell whether the forward kernel gains by tensor descriptors where a program goes through so many keys."""
        return n_keys >= self.min_length_for_tma

    def backward_gains_by_tma(self, head_dim: int, length: int) -> bool:
        """Tell whether the backward kernels gain by tensor descriptors with so many queries or keys to go through."""
        return length >= self.min_length_for_tma or tile_width(head_dim) >= WIDE_BACKWARD

    def forward_chunking(self, dtype: torch.dtype) -> Chunking:
        """Return when the forward pass cuts its keys into chunks."""
        return self.forward_chunks_fp32 if dtype == torch.float32 else self.forward_chunks

    def backward_chunking(self, dtype: torch.dtype) -> Chunking:
        """Return when the backward pass cuts its queries and keys into chunks."""
        return self.backward_chunks_fp32 if dtype == torch.float32 else self.backward_chunks

    def chunk_length(self, chunking: Chunking, tiles: int, length: int, block: int, multiprocessors: int) -> int:
        """Return into how long chunks to cut keys or queries: all of them in one where the grid is long enough.

        tiles: those of the other side, over all heads; block: their size. A chunk is a multiple of every tile size, so
        that the first key of a chunk that a causal tile of queries reaches is one that each of them attends to.
        """
        wanted = chunking.programs_per_sm * multiprocessors
        if tiles >= wanted or length < chunking.shortest:
            return length
        if chunking.length_in_one_wave is not None:
            in_one_wave = -(-length // chunking.length_in_one_wave)
            if in_one_wave <= self.few_chunks and tiles * in_one_wave <= multiprocessors:
                return chunking.length_in_one_wave
        chunks = -(-wanted // tiles)
        unit = max(chunking.min_length, block)
        return min(length, -(-length // (chunks * unit)) * unit)


IN_USE = Choices(gluon=True)
PLAIN = Choices()
