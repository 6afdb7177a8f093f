"""Choose the tiles of the Triton kernels by shared memory, dtype, head_dim and amount of work.

The thresholds are for an H200; docs/attention-kernels.md lists what was tried and what was measured.
"""

from dataclasses import dataclass

import torch
import triton

from pipeline.attention.triton.tile_tables import HOPPER_TILES, BackwardConfig, Table, TileConfig, TileTables

# Backward tiles this wide use tensor descriptors even for short loops: without them they spill.
WIDE_BACKWARD = 128


@dataclass(frozen=True)
class Chunking:
    """When to cut a kernel's loop into chunks, one program each: below `programs_per_sm` programs per multiprocessor.

    min_length: the fewest keys or queries of a chunk; shortest: the shortest sequence that is cut at all;
    length_in_one_wave: the chunk length to use instead if it gives few chunks and all programs then run at once, one
    per multiprocessor.
    """

    programs_per_sm: int
    min_length: int
    shortest: int
    length_in_one_wave: int | None = None


MAX_HEAD_DIM = max(HOPPER_TILES.forward)


@triton.constexpr_function
def tile_width(head_dim: int) -> int:
    """Return how many columns the tiles have: the next power of two, at least 16 for a matrix product."""
    return max(16, triton.next_power_of_2(head_dim))


@dataclass(frozen=True, eq=False)
class Choices:
    """The settings of plans: tile tables, or tiles instead of them, and thresholds on the amount of work.

    Choices compare by identity, which keeps looking up their plans cheap.

    gluon: whether Gluon kernels may be chosen (`kernel_sets`); all other settings are for the plain kernels;
    tables: used instead of the GPU's own;
    forward_tiles, backward_tiles: used whatever the dtype, the width and the number of keys;
    min_length_for_tma: with fewer keys or queries to go through, a program ends before tensor descriptors pay off;
    longest_short_sequence: up to here the backward pass is one kernel, because repeating some work costs less than
    launching another; in fp32 up to longest_short_sequence_fp32, and with at most short_programs_per_sm_fp32;
    few_keys: a forward program with fewer keys ends sooner with smaller tiles, loaded further ahead;
    one_tile: a forward program whose keys fit into a tile of this many, and fill more than half of it, gets that tile;
    few_chunks: the most chunks of `length_in_one_wave`; this many are combined in two steps (`kernels.chunks`);
    many_keys: at head_dim 64, one stage less lets a third program fit on a multiprocessor, which hides the start and
    end of programs; from this many keys per program on, the stage hides more than that;
    long_sequence: from here on, larger backward tiles at head_dim 64 gain more than they waste on the diagonal.
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

        n_keys: how many keys a program goes through; block_queries does not depend on it. tables: of the GPU.
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
        """Tell whether the backward pass is one kernel; programs_per_sm: how many it would have per multiprocessor."""
        longest = self.longest_short_sequence
        if dtype == torch.float32:
            longest = min(longest, self.longest_short_sequence_fp32)
            if programs_per_sm > self.short_programs_per_sm_fp32:
                return False
        return max(n_queries, n_keys) <= longest

    def forward_gains_by_tma(self, n_keys: int) -> bool:
        """Tell whether tensor descriptors pay off in a forward program that goes through `n_keys` keys."""
        return n_keys >= self.min_length_for_tma

    def backward_gains_by_tma(self, head_dim: int, length: int) -> bool:
        """Tell whether tensor descriptors pay off in backward programs that go through `length` queries or keys."""
        return length >= self.min_length_for_tma or tile_width(head_dim) >= WIDE_BACKWARD

    def forward_chunking(self, dtype: torch.dtype) -> Chunking:
        """Return when the forward pass cuts its keys into chunks."""
        return self.forward_chunks_fp32 if dtype == torch.float32 else self.forward_chunks

    def backward_chunking(self, dtype: torch.dtype) -> Chunking:
        """Return when the backward pass cuts its queries and keys into chunks."""
        return self.backward_chunks_fp32 if dtype == torch.float32 else self.backward_chunks

    def chunk_length(self, chunking: Chunking, tiles: int, length: int, block: int, multiprocessors: int) -> int:
        """Return the chunk length of keys or queries: all of them if the grid is large enough.

        tiles: how many the other side has, over all heads; block: a tile size. A chunk is a multiple of every tile
        size, so if a causal tile of queries reaches a chunk, each of its queries attends to the chunk's first key.
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
