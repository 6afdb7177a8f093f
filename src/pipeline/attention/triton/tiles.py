"""Which tiles the Triton kernels use: by shared memory, dtype and width, which follows from head_dim, and by how much
work there is.

The thresholds are for an H200; docs/attention-kernels.md tells what was tried, and what of it was measured.
"""

from dataclasses import dataclass

import torch
import triton

from pipeline.attention.triton.tile_tables import HOPPER_TILES, BackwardConfig, Table, TileConfig, TileTables

# Wide tiles of the backward pass have tensor descriptors however little there is to go through: without, they spill.
WIDE_BACKWARD = 128


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


MAX_HEAD_DIM = max(HOPPER_TILES.forward)


@triton.constexpr_function
def tile_width(head_dim: int) -> int:
    """Return how many columns the tiles have: the next power of two, and enough for a matrix product."""
    return max(16, triton.next_power_of_2(head_dim))


@dataclass(frozen=True, eq=False)
class Choices:
    """What plans go by: the tables or tiles in their place, and thresholds of how much work there is.

    Choices compare by identity, which keeps looking up their plans cheap.

    gluon: whether the kernels in Gluon may be chosen (`kernel_sets`); all else is about the plain ones;
    tables: these instead of the GPU's own;
    forward_tiles, backward_tiles: these tiles whatever the dtype, the width and the number of keys;
    min_length_for_tma: with fewer keys or queries to go through, a program ends before its tensor descriptors pay;
    longest_short_sequence: up to here the backward pass is one kernel: repeating some work costs less than launching
    another; in fp32 up to longest_short_sequence_fp32, and only with at most short_programs_per_sm_fp32;
    few_keys: a program of the forward pass that goes through fewer ends sooner with smaller tiles, loaded further
    ahead; one_tile: one whose keys fill more than half a tile of so many, and no more than it, with that;
    few_chunks: as many are put together in two steps (`kernels.chunks`); many_keys: at head_dim 64 a third program fits
    on a multiprocessor with one stage less, which hides how programs begin and end: from so many keys a program on,
    that takes less than what the stage hides; long_sequence: from here on the larger tiles of the backward pass at
    head_dim 64 gain more than the diagonal wastes of them.
    """

    gluon: bool = False
    tables: TileTables | None = None
    forward_tiles: TileConfig | None = None
    backward_tiles: BackwardConfig | None = None
    forward_chunks: Chunking = Chunking(programs_per_sm=4, min_length=256, shortest=1024, length_in_one_wave=128)
    forward_chunks_fp32: Chunking = Chunking(programs_per_sm=8, min_length=256, shortest=512)
    backward_chunks: Chunking = Chunking(programs_per_sm=2, min_length=256, shortest=1024)
    backward_chunks_fp32: Chunking = Chunking(programs_per_sm=8, min_length=256, shortest=1024)
    min_length_for_tma: int = 1024
    longest_short_sequence: int = 1024
    longest_short_sequence_fp32: int = 512
    short_programs_per_sm_fp32: int = 4
    few_keys: int = 1024
    one_tile: int = 128
    few_chunks: int = 8
    many_keys: int = 16384
    long_sequence: int = 16384

    def forward(self, dtype: torch.dtype, head_dim: int, n_keys: int, tables: TileTables = HOPPER_TILES) -> TileConfig:
        """Return the tiles of the forward kernel.

        n_keys: how many keys a program goes through; block_queries does not depend on it. tables: the GPU's.
        """
        if self.forward_tiles is not None:
            return self.forward_tiles
        width, tables = tile_width(head_dim), self.tables or tables
        if dtype == torch.float32:
            return tables.forward_fp32[width]
        exceptions: Table = {}
        if self.one_tile // 2 < n_keys <= self.one_tile:
            exceptions = tables.forward_one_tile
        elif n_keys < self.few_keys:
            exceptions = tables.forward_few_keys
        elif n_keys < self.many_keys:
            exceptions = tables.forward_not_many_keys
        return exceptions.get(width, tables.forward[width])

    def backward(
        self, dtype: torch.dtype, head_dim: int, n_keys: int, tables: TileTables = HOPPER_TILES
    ) -> BackwardConfig:
        """Return the tiles of the backward kernels."""
        if self.backward_tiles is not None:
            return self.backward_tiles
        width, tables = tile_width(head_dim), self.tables or tables
        if dtype == torch.float32:
            return tables.backward_fp32[width]
        exceptions = tables.backward_long if n_keys >= self.long_sequence else {}
        return exceptions.get(width, tables.backward[width])

    def is_short(self, dtype: torch.dtype, n_queries: int, n_keys: int, programs_per_sm: float) -> bool:
        """Tell whether the backward pass is one kernel; programs_per_sm: how many it then has a multiprocessor."""
        longest = self.longest_short_sequence
        if dtype == torch.float32:
            longest = min(longest, self.longest_short_sequence_fp32)
            if programs_per_sm > self.short_programs_per_sm_fp32:
                return False
        return max(n_queries, n_keys) <= longest

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
