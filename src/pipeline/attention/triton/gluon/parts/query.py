"""dq in fp32 for Hopper: two warpgroups share the same 64 queries and alternate over blocks of keys.

Each sums over its own blocks; at the end of a tile, the second hands its sum to the first. So dq is summed in a fixed
order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.parts.forward import GROUPS
from pipeline.attention.triton.gluon.parts.products import (
    PRODUCTS,
    in_parts,
    load_parts,
    start_product,
    start_scores,
    store_rows,
)
from pipeline.attention.triton.gluon.pieces import (
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
from pipeline.attention.triton.kernels.delta import row_length
from pipeline.attention.triton.kernels.parts import PARTS


@gluon.jit
def _load(
    q_ptr, k_ptr, v_ptr, do_ptr, sizes, tiles, ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr,
):  # fmt: skip
    """Load q and do of every tile of queries, and the keys and values that it sees, the last block first.

    Blocks alternate between the two warpgroups, starting with the first in every tile.
    """
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    kv_matrices = n_matrices // HEADS_PER_KV
    q = dense_matrices_at(q_ptr, PARTS * n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    do = dense_matrices_at(do_ptr, PARTS * n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    k = dense_matrices_at(k_ptr, PARTS * kv_matrices, n_keys, HEAD_DIM, BLOCK_KEYS, WIDTH)
    v = dense_matrices_at(v_ptr, PARTS * kv_matrices, n_keys, HEAD_DIM, BLOCK_KEYS, WIDTH)
    first_phase, second_phase = 1, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS
        mbarrier.wait(q_free, (i & 1) ^ 1)
        mbarrier.expect(q_full, PARTS * (q.block_type.nbytes + do.block_type.nbytes))
        load_parts(q, matrix, n_matrices, first_query, q_full, q_tiles, 0)
        load_parts(do, matrix, n_matrices, first_query, q_full, do_tiles, 0)
        blocks = blocks_of(first_query + ROWS, n_keys, CAUSAL, BLOCK_KEYS)
        for block in range(blocks):
            group = block % GROUPS
            phase = gl.where(group == 0, first_phase, second_phase)
            key = (blocks - 1 - block) * BLOCK_KEYS
            mbarrier.wait(k_free.index(group), phase)
            mbarrier.expect(k_full.index(group), PARTS * k.block_type.nbytes)
            load_parts(k, matrix // HEADS_PER_KV, kv_matrices, key, k_full.index(group), k_tiles, group * PARTS)
            mbarrier.wait(v_free.index(group), phase)
            mbarrier.expect(v_full.index(group), PARTS * v.block_type.nbytes)
            load_parts(v, matrix // HEADS_PER_KV, kv_matrices, key, v_full.index(group), v_tiles, group * PARTS)
            first_phase ^= 1 - group
            second_phase ^= group
        i += 1
        item = work_item(i)


@gluon.jit
def _step(
    dq, no_scores, no_sum, block, lse, delta, first_query, n_keys, scale_log2, tiles, ring, phase,
    MASKED: gl.constexpr, CAUSAL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add the contribution of a block of keys to a warpgroup's dq."""
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, dq.type.layout, 2)
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    _q_full, _q_free, k_full, k_free, v_full, v_free = ring
    mbarrier.wait(k_full.index(GROUP), phase)
    s_coming = start_scores(q_tiles, 0, k_tiles, GROUP * PARTS, no_scores, False)
    mbarrier.wait(v_full.index(GROUP), phase)
    dp_coming = start_scores(do_tiles, 0, v_tiles, GROUP * PARTS, no_scores, False)
    s = warpgroup_mma_wait(PRODUCTS, deps=[s_coming])
    p = gl.exp2(s * scale_log2 - lse[:, None])
    if MASKED:
        p = masked(p, 0.0, block, first_query, n_keys, CAUSAL)
    dp = warpgroup_mma_wait(0, deps=[dp_coming])
    mbarrier.arrive(v_free.index(GROUP), count=1)
    parts = in_parts(p * (dp - delta[:, None]), A_LAYOUT)
    of_block = start_product(parts, k_tiles, GROUP * PARTS, no_sum)
    of_block, _0, _1, _2 = warpgroup_mma_wait(0, deps=[of_block, parts[0], parts[1], parts[2]])
    mbarrier.arrive(k_free.index(GROUP), count=1)
    return dq + of_block


@gluon.jit
def _differentiate(
    lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, handed, CAUSAL: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute dq of every tile from every other block of keys; hand it over (GROUP 1), or add both and write."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    dq_tile, dq_full, dq_free = handed
    q_full, q_free, _k_full, _k_free, _v_full, _v_free = ring
    no_scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, S_LAYOUT)
    no_sum = gl.zeros([ROWS, WIDTH], gl.float32, DQ_LAYOUT)
    phase = 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS
        blocks = blocks_of(first_query + ROWS, n_keys, CAUSAL, BLOCK_KEYS)
        queries = first_query + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        row = matrix.to(gl.int64) * row_length(n_queries) + queries
        lse = gl.load(lse_log2_ptr + row, mask=queries < n_queries, other=0.0)
        delta = gl.load(delta_ptr + row, mask=queries < n_queries, other=0.0)
        dq = gl.zeros([ROWS, WIDTH], gl.float32, DQ_LAYOUT)
        mbarrier.wait(q_full, i & 1)
        if blocks > GROUP:  # only the last one or two blocks need a mask
            dq = _step(
                dq, no_scores, no_sum, blocks - 1 - GROUP, lse, delta, first_query, n_keys, scale_log2, tiles, ring,
                phase, True, CAUSAL, GROUP,
            )  # fmt: skip
            phase ^= 1
        for block in range(GROUP + GROUPS, blocks, GROUPS):
            dq = _step(
                dq, no_scores, no_sum, blocks - 1 - block, lse, delta, first_query, n_keys, scale_log2, tiles, ring,
                phase, False, CAUSAL, GROUP,
            )  # fmt: skip
            phase ^= 1
        mbarrier.arrive(q_free, count=1)
        if GROUP == 1:
            mbarrier.wait(dq_free, (i & 1) ^ 1)
            dq_tile.store(dq)
            mbarrier.arrive(dq_full, count=1)
        else:
            mbarrier.wait(dq_full, i & 1)
            dq += dq_tile.load(DQ_LAYOUT)
            mbarrier.arrive(dq_free, count=1)
            store_rows(dq_ptr, matrix, first_query, n_queries, dq * scale, HEAD_DIM)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_parts_query_kernel(
    q_parts_ptr, k_parts_ptr, v_parts_ptr, do_parts_ptr, lse_log2_ptr, delta_ptr, dq_ptr,
    n_matrices, n_queries, n_keys, n_tiles, heads_together, scale, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dq of every tile of 64 queries from the keys that it sees.

    Shapes: q, k, v and do are as `parts_kernel` writes them, (3, matrices, rows, head_dim) bf16; lse_log2 and delta as
    `delta_kernel` does; dq is (n_matrices, n_queries, head_dim), where n_matrices = batch · heads; HEADS_PER_KV
    consecutive heads share keys and values.
    """
    gdc_wait()
    q_tiles, do_tiles = tiles_of(PARTS, ROWS, WIDTH, gl.bfloat16), tiles_of(PARTS, ROWS, WIDTH, gl.bfloat16)
    k_tiles = tiles_of(GROUPS * PARTS, BLOCK_KEYS, WIDTH, gl.bfloat16)
    v_tiles = tiles_of(GROUPS * PARTS, BLOCK_KEYS, WIDTH, gl.bfloat16)
    q_full, q_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    k_full, k_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    v_full, v_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    handed = (tiles_of(1, ROWS, WIDTH, gl.float32).index(0), barriers(1, 1).index(0), barriers(1, 1).index(0))
    fence_async_shared()
    sizes = (n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles, v_tiles, do_tiles)
    ring = (q_full, q_free, k_full, k_free, v_full, v_free)
    # Each tuple spells out its constants: collected in a variable, they would become runtime values.
    gl.warp_specialize(
        [
            (_differentiate, (lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, handed, CAUSAL,
                              HEAD_DIM, WIDTH, BLOCK_KEYS, gl.constexpr(0))),
            (_differentiate, (lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, handed, CAUSAL,
                              HEAD_DIM, WIDTH, BLOCK_KEYS, gl.constexpr(1))),
            (_load, (q_parts_ptr, k_parts_ptr, v_parts_ptr, do_parts_ptr, sizes, tiles, ring, CAUSAL, HEADS_PER_KV,
                     HEAD_DIM, WIDTH, BLOCK_KEYS)),
        ],
        [4, 1], [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
