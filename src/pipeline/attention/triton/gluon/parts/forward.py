"""Forward pass in fp32 for Hopper: persistent programs of one loading warp and two warpgroups of 64 queries each.

Six bf16 products per fp32 product take so long that one warpgroup's softmax hides behind the other's products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.parts.products import in_parts, load_parts, start_product, start_scores, store_rows
from pipeline.attention.triton.gluon.pieces import (
    LN_2,
    LOADING_REGISTERS,
    ROWS,
    SIZES,
    barriers,
    blocks_of,
    dense_matrices_at,
    masked,
    matrix_and_tile,
    tile_after,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.gluon.softmax import first_weights, more_weights, rescaled, sums_and_lse
from pipeline.attention.triton.kernels.parts import PARTS

GROUPS = gl.constexpr(2)


@gluon.jit
def _load(
    q_parts_ptr, k_parts_ptr, v_parts_ptr, sizes, tiles, ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr,
):  # fmt: skip
    """Load queries, keys and values ahead of the warpgroups, the last keys first."""
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    kv_matrices = n_matrices // HEADS_PER_KV
    q = dense_matrices_at(q_parts_ptr, PARTS * n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    k = dense_matrices_at(k_parts_ptr, PARTS * kv_matrices, n_keys, HEAD_DIM, BLOCK_KEYS, WIDTH)
    v = dense_matrices_at(v_parts_ptr, PARTS * kv_matrices, n_keys, HEAD_DIM, BLOCK_KEYS, WIDTH)
    phase = 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS * GROUPS
        for group in gl.static_range(GROUPS):
            mbarrier.wait(q_free.index(group), (i & 1) ^ 1)
            mbarrier.expect(q_full.index(group), PARTS * q.block_type.nbytes)
            load_parts(
                q, matrix, n_matrices, first_query + group * ROWS, q_full.index(group), q_tiles, group * PARTS
            )  # fmt: skip
        blocks = blocks_of(first_query + ROWS * GROUPS, n_keys, CAUSAL, BLOCK_KEYS)
        for block in range(blocks):
            key = (blocks - 1 - block) * BLOCK_KEYS
            mbarrier.wait(k_free, phase)
            mbarrier.expect(k_full, PARTS * k.block_type.nbytes)
            load_parts(k, matrix // HEADS_PER_KV, kv_matrices, key, k_full, k_tiles, 0)
            mbarrier.wait(v_free, phase)
            mbarrier.expect(v_full, PARTS * v.block_type.nbytes)
            load_parts(v, matrix // HEADS_PER_KV, kv_matrices, key, v_full, v_tiles, 0)
            phase ^= 1
        i += 1
        item = work_item(i)


@gluon.jit
def _attend(
    o_ptr, lse_ptr, sizes, scale_log2, tiles, ring, CAUSAL: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Attend from one warpgroup's queries in every tile."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)  # weights stay in registers
    S_ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROW: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    no_scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, S_LAYOUT)
    no_output = gl.zeros([ROWS, WIDTH], gl.float32, O_LAYOUT)
    phase = 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_tile_query = tile_after(rank, n_tiles, CAUSAL) * ROWS * GROUPS
        first_query = first_tile_query + GROUP * ROWS
        blocks = blocks_of(first_query + ROWS, n_keys, CAUSAL, BLOCK_KEYS)
        if first_query >= n_queries:
            blocks = 0
        for _ in range(blocks_of(first_tile_query + ROWS * GROUPS, n_keys, CAUSAL, BLOCK_KEYS) - blocks):
            # Blocks that only the other warpgroup attends to: release them unread.
            mbarrier.wait(k_full, phase)
            mbarrier.arrive(k_free, count=1)
            mbarrier.wait(v_full, phase)
            mbarrier.arrive(v_free, count=1)
            phase ^= 1
        mbarrier.wait(q_full.index(GROUP), i & 1)
        if blocks > 0:
            # The last block first: only it needs a mask, and every query sees its first key, so no row is all -∞.
            mbarrier.wait(k_full, phase)
            s = start_scores(q_tiles, GROUP * PARTS, k_tiles, 0, no_scores, False)
            s = warpgroup_mma_wait(0, deps=[s])
            mbarrier.arrive(k_free, count=1)
            s = masked(s, float("-inf"), blocks - 1, first_query, n_keys, CAUSAL)
            weights, maximum, total = first_weights(s, scale_log2, gl.float32)
            parts = in_parts(weights, P_LAYOUT)
            mbarrier.wait(v_full, phase)
            o = start_product(parts, v_tiles, 0, no_output)
            o, _0, _1, _2 = warpgroup_mma_wait(0, deps=[o, parts[0], parts[1], parts[2]])
            mbarrier.arrive(v_free, count=1)
            phase ^= 1
            for _ in range(blocks - 1):
                mbarrier.wait(k_full, phase)
                s = start_scores(q_tiles, GROUP * PARTS, k_tiles, 0, no_scores, False)
                s = warpgroup_mma_wait(0, deps=[s])
                mbarrier.arrive(k_free, count=1)
                weights, maximum, total, rescale = more_weights(s, maximum, total, scale_log2, gl.float32)
                parts = in_parts(weights, P_LAYOUT)
                mbarrier.wait(v_full, phase)
                of_block = start_product(parts, v_tiles, 0, no_output)
                o = rescaled(o, rescale)
                of_block, _0, _1, _2 = warpgroup_mma_wait(0, deps=[of_block, parts[0], parts[1], parts[2]])
                mbarrier.arrive(v_free, count=1)
                o += of_block
                phase ^= 1
            queries = first_query + gl.arange(0, ROWS, S_ROW)
            sums, lse_log2 = sums_and_lse(total, maximum, S_ROW)
            gl.store(lse_ptr + matrix.to(gl.int64) * n_queries + queries, lse_log2 * LN_2, mask=queries < n_queries)
            o *= (1.0 / gl.convert_layout(sums, O_ROW))[:, None]
            store_rows(o_ptr, matrix, first_query, n_queries, o, HEAD_DIM)
        mbarrier.arrive(q_free.index(GROUP), count=1)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_parts_forward_kernel(
    q_parts_ptr, k_parts_ptr, v_parts_ptr, o_ptr, lse_ptr,
    n_matrices, n_queries, n_keys, n_tiles, heads_together, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Attend from every tile of 128 queries to its keys.

    Shapes: q, k and v are as `parts_kernel` writes them, (3, matrices, rows, head_dim) bf16; o is (matrices, n_queries,
    head_dim) and lse (matrices, n_queries), both fp32, where matrices = batch · heads; HEADS_PER_KV consecutive heads
    share keys and values.
    """
    gdc_wait()
    q_tiles = tiles_of(GROUPS * PARTS, ROWS, WIDTH, gl.bfloat16)
    k_tiles, v_tiles = tiles_of(PARTS, BLOCK_KEYS, WIDTH, gl.bfloat16), tiles_of(PARTS, BLOCK_KEYS, WIDTH, gl.bfloat16)
    q_full, q_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    k_full, k_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    v_full, v_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    fence_async_shared()
    sizes = (n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles, v_tiles)
    ring = (q_full, q_free, k_full, k_free, v_full, v_free)
    # Each tuple spells out its constants: collected in a variable, they would become runtime values.
    gl.warp_specialize(
        [
            (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                       gl.constexpr(0))),
            (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                       gl.constexpr(1))),
            (_load, (q_parts_ptr, k_parts_ptr, v_parts_ptr, sizes, tiles, ring, CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH,
                     BLOCK_KEYS)),
        ],
        [4, 1], [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
