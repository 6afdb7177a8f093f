"""Warps of the Hopper backward kernels that only move data: they load keys and queries and add dq to its sums."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from pipeline.attention.triton.gluon.pieces import (
    FIRST_NAMED_BARRIER,
    arrive,
    arrive_and_wait,
    dense_matrices_at,
    item_of,
    load,
    matrices_at,
    next_slot,
)
from pipeline.attention.triton.kernels.delta import PARTS_ROW, row_length
from pipeline.compat.gluon_private import tma_reduce_add

KEYS = gl.constexpr(64)  # per warpgroup: the rows of one wgmma
GROUPS = gl.constexpr(2)
BLOCK_KEYS = gl.constexpr(128)
PLAIN_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2))
# Named barriers of `hopper_backward_kernel`. DS_FULL: four on which its warpgroups wait for each other's dS, in one of
# three ways (`steps`); DQ_FULL and DQ_FREE: one per warpgroup, for its part of dq; Q_FREE and DO_FREE: one per slot of
# q and of do.
DS_FULL = gl.constexpr(FIRST_NAMED_BARRIER)
DQ_FULL, DQ_FREE = gl.constexpr(DS_FULL + 4), gl.constexpr(DS_FULL + 6)
Q_FREE, DO_FREE = gl.constexpr(DS_FULL + 8), gl.constexpr(DS_FULL + 10)
ALL_THREADS = gl.constexpr(256)  # of both warpgroups
FREE_THREADS = gl.constexpr(288)  # and of a loading warp
DQ_THREADS = gl.constexpr(160)  # of one warpgroup and the warp that adds dq
PARTS_WIDTH = gl.constexpr(16)  # columns of a tile of LSE or δ in parts: the smallest K of a wgmma
DQ_COLUMNS = gl.constexpr(256)  # of a row of dq as `by_thread` lays it out


@gluon.jit
def rows_at(pointer, n_matrices, n_queries, BLOCK: gl.constexpr):
    """Return a tensor descriptor of fp32 numbers per query, as `delta_kernel` writes them, in blocks of one matrix."""
    return tma.make_tensor_descriptor(
        pointer, [n_matrices, n_queries], [row_length(n_queries), 1], [1, BLOCK], PLAIN_LAYOUT
    )


@gluon.jit
def first_block_of(first_key, CAUSAL: gl.constexpr, BLOCK_QUERIES: gl.constexpr):
    """Return the first block of queries that see any key of a tile."""
    return first_key // BLOCK_QUERIES if CAUSAL else 0


@gluon.jit
def by_thread(x):
    """Reorder a wgmma result (64, columns) into rows of 256: of 8 columns, each thread's four numbers are adjacent.

    So a thread stores four numbers at a time, without bank conflicts.
    """
    EIGHTS: gl.constexpr = x.shape[1] // 8
    warps_and_columns = gl.reshape(x, [4, 2, 8, EIGHTS, 4, 2])
    return gl.reshape(gl.permute(warps_and_columns, (3, 0, 2, 4, 1, 5)), [EIGHTS * 512 // DQ_COLUMNS, DQ_COLUMNS])


@gluon.jit
def load_keys(
    k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, tails, full, free, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, TAIL: gl.constexpr, BLOCKS: gl.constexpr, IN_PAIRS: gl.constexpr,
):  # fmt: skip
    """Load every tile of keys and values, as BLOCKS blocks of 64."""
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    kv_heads = heads // HEADS_PER_KV
    k = matrices_at(k_ptr, n_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, KEYS, WIDTH)
    v = matrices_at(v_ptr, n_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, KEYS, WIDTH)
    BYTES: gl.constexpr = BLOCKS * (k.block_type.nbytes + v.block_type.nbytes) * (WIDTH + TAIL) // WIDTH
    if TAIL:
        k_tail = matrices_at(k_ptr, n_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, KEYS, TAIL)
        v_tail = matrices_at(v_ptr, n_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, KEYS, TAIL)
    i = 0
    exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    while exists:
        mbarrier.wait(free, (i & 1) ^ 1)
        mbarrier.expect(full, BYTES)
        for block in gl.static_range(BLOCKS):
            first_key = (tile * BLOCKS + block) * KEYS
            load(k, matrix, kv_heads, first_key, full, k_tiles.index(block))
            load(v, matrix, kv_heads, first_key, full, v_tiles.index(block))
            if TAIL:
                load(k_tail, matrix, kv_heads, first_key, full, tails[0].index(block), WIDTH)
                load(v_tail, matrix, kv_heads, first_key, full, tails[1].index(block), WIDTH)
        i += 1
        exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)


@gluon.jit
def load_queries(
    pointer, number_ptr, strides, sizes, tiles, tail, numbers, full, free, CAUSAL: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, TAIL: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, BLOCK_QUERIES: gl.constexpr, STAGES: gl.constexpr, NAMED: gl.constexpr,
    IN_PAIRS: gl.constexpr,
):  # fmt: skip
    """Load q, or do, of the queries that see each tile of keys, and with it LSE, or δ.

    Heads that share the keys come one after the other. numbers: buffers of LSE or δ, rows in fp32 or tiles of bf16
    parts. NAMED: the first of the named barriers that tell when a slot is free, or 0 if the mbarriers `free` do.
    """
    IN_PARTS: gl.constexpr = numbers.dtype == gl.bfloat16
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    rows = matrices_at(pointer, n_matrices * HEADS_PER_KV, heads, n_queries, strides, HEAD_DIM, BLOCK_QUERIES, WIDTH)
    if TAIL:
        rows_tail = matrices_at(
            pointer, n_matrices * HEADS_PER_KV, heads, n_queries, strides, HEAD_DIM, BLOCK_QUERIES, TAIL
        )
    if IN_PARTS:
        number = dense_matrices_at(
            number_ptr, n_matrices * HEADS_PER_KV, n_queries, PARTS_ROW, BLOCK_QUERIES, PARTS_WIDTH
        )
    else:
        number = rows_at(number_ptr, n_matrices * HEADS_PER_KV, n_queries, BLOCK_QUERIES)
    BYTES: gl.constexpr = rows.block_type.nbytes * (WIDTH + TAIL) // WIDTH + number.block_type.nbytes
    slot, phase, loaded = 0, 1, 0
    i = 0
    exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    while exists:
        first = first_block_of(tile * BLOCK_KEYS, CAUSAL, BLOCK_QUERIES)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            for block in range(first, gl.cdiv(n_queries, BLOCK_QUERIES)):
                if NAMED:
                    if loaded >= STAGES:
                        arrive_and_wait(NAMED + slot, FREE_THREADS)
                    loaded += 1
                else:
                    mbarrier.wait(free.index(slot), phase)
                mbarrier.expect(full.index(slot), BYTES)
                load(rows, of_queries, heads, block * BLOCK_QUERIES, full.index(slot), tiles.index(slot))
                if TAIL:
                    load(rows_tail, of_queries, heads, block * BLOCK_QUERIES, full.index(slot), tail.index(slot), WIDTH)
                if IN_PARTS:
                    of_all = n_matrices * HEADS_PER_KV
                    load(number, of_queries, of_all, block * BLOCK_QUERIES, full.index(slot), numbers.index(slot))
                else:
                    tma.async_copy_global_to_shared(
                        number, [of_queries, block * BLOCK_QUERIES], full.index(slot), numbers.index(slot)
                    )
                slot, phase = next_slot(slot, phase, STAGES)
        i += 1
        exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    if NAMED:  # every arrival at a named barrier must be met before the program ends
        for earlier in range(gl.maximum(loaded - STAGES, 0), loaded):
            arrive_and_wait(NAMED + earlier % STAGES, FREE_THREADS)


@gluon.jit
def add_dq(
    dq_sum_ptr, sizes, dq_tiles, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, BLOCK_KEYS: gl.constexpr,
    BLOCK_QUERIES: gl.constexpr, IN_PAIRS: gl.constexpr,
):  # fmt: skip
    """Add both warpgroups' parts of dq of every step to the sums in global memory, using the copy engine."""
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    ROWS: gl.constexpr = dq_tiles[0].shape[0]
    TAIL_ROWS: gl.constexpr = dq_tiles[1].shape[0]
    blocks = gl.cdiv(n_queries, BLOCK_QUERIES)
    shape = [n_matrices * HEADS_PER_KV * blocks * (ROWS + TAIL_ROWS), DQ_COLUMNS]
    dq = tma.make_tensor_descriptor(dq_sum_ptr, shape, [DQ_COLUMNS, 1], [ROWS, DQ_COLUMNS], PLAIN_LAYOUT)
    dq_tail = tma.make_tensor_descriptor(dq_sum_ptr, shape, [DQ_COLUMNS, 1], [TAIL_ROWS, DQ_COLUMNS], PLAIN_LAYOUT)
    i = 0
    exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    while exists:
        first = first_block_of(tile * BLOCK_KEYS, CAUSAL, BLOCK_QUERIES)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            for block in range(first, blocks):
                row = (of_queries * blocks + block) * (ROWS + TAIL_ROWS)
                arrive(DQ_FREE, DQ_THREADS)
                arrive(DQ_FREE + 1, DQ_THREADS)
                arrive_and_wait(DQ_FULL, DQ_THREADS)
                tma_reduce_add(dq, [row, 0], dq_tiles[0])
                arrive_and_wait(DQ_FULL + 1, DQ_THREADS)
                tma_reduce_add(dq_tail, [row + ROWS, 0], dq_tiles[1])
                tma.store_wait(0)  # until both have been read
        i += 1
        exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
