"""dq for Hopper at head_dim 136 to 256: persistent programs of one loading warp and two warpgroups of 64 queries each.

dk and dv have their own kernel (`key_value_wide`), so scores are computed twice. But dq is summed in registers and in a
fixed order; summing it in memory, one tile of 64 keys after the other, took longer than the repeated scores.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.backward import GROUPS
from pipeline.attention.triton.gluon.pieces import (
    LOADING_REGISTERS,
    ROWS,
    SIZES,
    barriers,
    blocks_of,
    dense_matrices_at,
    load,
    masked,
    matrices_at,
    matrix_and_tile,
    next_slot,
    store_block,
    tile_after,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.kernels.delta import row_length

BLOCK_KEYS = gl.constexpr(64)
K_STAGES = gl.constexpr(2)  # keys are needed longer than values


@gluon.jit
def _load(
    q_ptr, k_ptr, v_ptr, do_ptr, strides, sizes, tiles, ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Load q and do of every tile of queries, and the keys and values that it sees, the last block first."""
    q_strides, k_strides, v_strides, do_strides = strides
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tile, do_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    kv_heads, kv_matrices = heads // HEADS_PER_KV, n_matrices // HEADS_PER_KV
    q = matrices_at(q_ptr, n_matrices, heads, n_queries, q_strides, HEAD_DIM, ROWS, WIDTH)
    do = matrices_at(do_ptr, n_matrices, heads, n_queries, do_strides, HEAD_DIM, ROWS, WIDTH)
    k = matrices_at(k_ptr, kv_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    v = matrices_at(v_ptr, kv_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    slot, phase, v_phase = 0, 1, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS * GROUPS
        for group in gl.static_range(GROUPS):
            full = q_full.index(group)
            mbarrier.wait(q_free.index(group), (i & 1) ^ 1)
            mbarrier.expect(full, q.block_type.nbytes + do.block_type.nbytes)
            load(q, matrix, heads, first_query + group * ROWS, full, q_tiles.index(group))
            load(do, matrix, heads, first_query + group * ROWS, full, do_tiles.index(group))
        blocks = blocks_of(first_query + ROWS * GROUPS, n_keys, CAUSAL, BLOCK_KEYS)
        for block in range(blocks):
            key = (blocks - 1 - block) * BLOCK_KEYS
            mbarrier.wait(k_free.index(slot), phase)
            mbarrier.expect(k_full.index(slot), k.block_type.nbytes)
            load(k, matrix // HEADS_PER_KV, kv_heads, key, k_full.index(slot), k_tiles.index(slot))
            mbarrier.wait(v_free, v_phase)
            mbarrier.expect(v_full, v.block_type.nbytes)
            load(v, matrix // HEADS_PER_KV, kv_heads, key, v_full, v_tile)
            slot, phase = next_slot(slot, phase, K_STAGES)
            v_phase ^= 1
        i += 1
        item = work_item(i)


@gluon.jit
def _step(
    dq, block, lse, delta, first_query, n_keys, scale_log2, q, do, k, v_tile, k_full, k_free, phase, v_full, v_free,
    v_phase, MASKED: gl.constexpr, CAUSAL: gl.constexpr, WIDTH: gl.constexpr,
):  # fmt: skip
    """Add the contribution of a block of keys to a warpgroup's dq."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, DQ_LAYOUT, 2)
    no_scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, S_LAYOUT)
    mbarrier.wait(k_full, phase)
    s_coming = warpgroup_mma(q, k.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    mbarrier.wait(v_full, v_phase)
    dp_coming = warpgroup_mma(do, v_tile.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s_coming])
    p = gl.exp2(s * scale_log2 - lse[:, None])
    if MASKED:
        p = masked(p, 0.0, block, first_query, n_keys, CAUSAL)
    dp = warpgroup_mma_wait(0, deps=[dp_coming])
    mbarrier.arrive(v_free, count=1)
    ds = gl.convert_layout((p * (dp - delta[:, None])).to(k.dtype), A_LAYOUT)
    dq_coming = warpgroup_mma(ds, k, dq, is_async=True)
    dq, ds = warpgroup_mma_wait(0, deps=[dq_coming, ds])
    mbarrier.arrive(k_free, count=1)
    return dq


@gluon.jit
def _differentiate(
    lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, CAUSAL: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute dq of one warpgroup's queries in every tile."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tile, do_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    dq_matrices = dense_matrices_at(dq_ptr, n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    q, do = q_tiles.index(GROUP), do_tiles.index(GROUP)
    slot, phase, v_phase = 0, 0, 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_tile_query = tile_after(rank, n_tiles, CAUSAL) * ROWS * GROUPS
        first_query = first_tile_query + GROUP * ROWS
        blocks = blocks_of(first_query + ROWS, n_keys, CAUSAL, BLOCK_KEYS)
        for _ in range(blocks_of(first_tile_query + ROWS * GROUPS, n_keys, CAUSAL, BLOCK_KEYS) - blocks):
            # Blocks that only the other warpgroup sees: release them unread.
            mbarrier.wait(k_full.index(slot), phase)
            mbarrier.arrive(k_free.index(slot), count=1)
            mbarrier.wait(v_full, v_phase)
            mbarrier.arrive(v_free, count=1)
            slot, phase = next_slot(slot, phase, K_STAGES)
            v_phase ^= 1
        queries = first_query + gl.arange(0, ROWS, gl.SliceLayout(1, S_LAYOUT))
        row = matrix.to(gl.int64) * row_length(n_queries) + queries
        lse = gl.load(lse_log2_ptr + row, mask=queries < n_queries, other=0.0)
        delta = gl.load(delta_ptr + row, mask=queries < n_queries, other=0.0)
        dq = gl.zeros([ROWS, WIDTH], gl.float32, DQ_LAYOUT)
        mbarrier.wait(q_full.index(GROUP), i & 1)
        # Only the last block needs a mask.
        dq = _step(
            dq, blocks - 1, lse, delta, first_query, n_keys, scale_log2, q, do, k_tiles.index(slot), v_tile,
            k_full.index(slot), k_free.index(slot), phase, v_full, v_free, v_phase, True, CAUSAL, WIDTH,
        )  # fmt: skip
        slot, phase = next_slot(slot, phase, K_STAGES)
        v_phase ^= 1
        for block in range(1, blocks):
            dq = _step(
                dq, blocks - 1 - block, lse, delta, first_query, n_keys, scale_log2, q, do, k_tiles.index(slot), v_tile,
                k_full.index(slot), k_free.index(slot), phase, v_full, v_free, v_phase, False, CAUSAL, WIDTH,
            )  # fmt: skip
            slot, phase = next_slot(slot, phase, K_STAGES)
            v_phase ^= 1
        # dq leaves through the buffer of its queries, which are no longer needed.
        store_block(dq_matrices, matrix, first_query, q, (dq * scale).to(q.dtype))
        mbarrier.arrive(q_free.index(GROUP), count=1)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_wide_query_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, n_matrices, n_queries, n_keys, n_tiles, heads_together,
    scale, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dq of every tile of 128 queries from the keys that it sees.

    Shapes: q, k, v and do are (batch, heads, rows, head_dim) by their strides; lse_log2 and delta are as `delta_kernel`
    writes them; dq is (n_matrices, n_queries, head_dim), where n_matrices = batch · heads; HEADS_PER_KV consecutive
    heads share keys and values.
    """
    gdc_wait()
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles, do_tiles = tiles_of(GROUPS, ROWS, WIDTH, DTYPE), tiles_of(GROUPS, ROWS, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(K_STAGES, BLOCK_KEYS, WIDTH, DTYPE), tiles_of(1, BLOCK_KEYS, WIDTH, DTYPE)
    q_full, q_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    k_full, k_free = barriers(K_STAGES, 1), barriers(K_STAGES, GROUPS)
    v_full, v_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    fence_async_shared()
    strides = (
        (stride_qb, stride_qh, stride_q), (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v),
        (stride_dob, stride_doh, stride_do),
    )  # fmt: skip
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles, v_tiles.index(0), do_tiles)
    ring = (q_full, q_free, k_full, k_free, v_full, v_free)
    # Each tuple spells out its constants: collected in a variable, they would become runtime values.
    gl.warp_specialize(
        [
            (_differentiate, (lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, CAUSAL, HEAD_DIM,
                              WIDTH, gl.constexpr(0))),
            (_differentiate, (lse_log2_ptr, delta_ptr, dq_ptr, sizes, scale, scale_log2, tiles, ring, CAUSAL, HEAD_DIM,
                              WIDTH, gl.constexpr(1))),
            (_load, (q_ptr, k_ptr, v_ptr, do_ptr, strides, sizes, tiles, ring, CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH)),
        ],
        [4, 1], [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
