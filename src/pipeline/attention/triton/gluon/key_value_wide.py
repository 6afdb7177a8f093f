"""dk and dv for Hopper at head_dim 136 to 256; dq has its own kernel (`query_wide`).

One warpgroup's registers cannot hold both gradients of 64 keys. So one computes the weights and dv, the other dS and
dk. The weights that dS needs pass through shared memory in one direction, so the first warpgroup can run ahead.
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

from pipeline.attention.triton.gluon.moving import GROUPS, KEYS, PLAIN_LAYOUT, first_block_of, load_keys, load_queries
from pipeline.attention.triton.gluon.pieces import (
    LOADING_REGISTERS,
    SIZES,
    barriers,
    dense_matrices_at,
    matrix_and_tile,
    next_slot,
    store_block,
    tiles_of,
    work_item,
)

QUERIES = gl.constexpr(64)  # per block
P_TILES = gl.constexpr(2)  # one is read while the next is written
S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))  # of scores: 64 keys by 64 queries


@gluon.jit
def hand_over_weights(
    s, block, slot, p_slot, p_phase, keys, scale_log2, lse_rows, p_tiles, q_free, p_ring, CAUSAL: gl.constexpr
):  # fmt: skip
    """Compute the weights of a block's scores, (keys, queries), and hand them to the other warpgroup.

    Weights of keys past the end may be infinite, but only reach rows of dk and dv that are not stored.
    """
    LAYOUT: gl.constexpr = s.type.layout
    QUERIES: gl.constexpr = s.shape[1]
    p_full, p_free = p_ring
    p = gl.exp2(s * scale_log2 - lse_rows.index(slot).load(LAYOUT))
    # The loads of LSE may still be running: this is safe because the slot is not free until the other warpgroup has
    # also used these weights for dk.
    mbarrier.arrive(q_free.index(slot), count=1)
    if CAUSAL:
        queries = block * QUERIES + gl.arange(0, QUERIES, gl.SliceLayout(0, LAYOUT))
        p = gl.where(keys <= queries[None, :], p, 0.0)
    mbarrier.wait(p_free.index(p_slot), p_phase)
    p_tiles.index(p_slot).store(p)
    mbarrier.arrive(p_full.index(p_slot), count=1)
    p_slot, p_phase = next_slot(p_slot, p_phase, P_TILES)
    return p, p_slot, p_phase


@gluon.jit
def _differentiate_values(
    dv_ptr, sizes, scale_log2, tiles, lse_rows, p_tiles, ring, p_ring, CAUSAL: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the weights and dv of every tile, a block's weights while the dv product of the one before runs."""
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)
    DTYPE: gl.constexpr = dv_ptr.dtype.element_ty
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tile, _v_tile, do_tiles = tiles
    kv_full, kv_free, q_full, q_free, do_full, do_free = ring
    dv_matrices = dense_matrices_at(dv_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    no_scores = gl.zeros([KEYS, QUERIES], gl.float32, S_LAYOUT)
    slot, phase, p_slot, p_phase = 0, 0, 0, 1
    blocks = gl.cdiv(n_queries, QUERIES)
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        dv = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        keys = (tile * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT)))[:, None]
        first = first_block_of(tile * KEYS, CAUSAL, QUERIES)
        mbarrier.wait(kv_full, i & 1)
        block = first
        if first < blocks:
            mbarrier.wait(q_full.index(slot), phase)
            q = q_tiles.index(slot)
            s_coming = warpgroup_mma(k_tile, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(0, deps=[s_coming])
            p, p_slot, p_phase = hand_over_weights(
                s, block, slot, p_slot, p_phase, keys, scale_log2, lse_rows, p_tiles, q_free, p_ring, CAUSAL,
            )  # fmt: skip
            weights = gl.convert_layout(p.to(DTYPE), A_LAYOUT)
            for _ in range(1, HEADS_PER_KV * (blocks - first)):
                slot_after, phase_after = next_slot(slot, phase, STAGES)
                block = gl.where(block + 1 == blocks, first, block + 1)  # after the last, the next head's first
                mbarrier.wait(q_full.index(slot_after), phase_after)
                q = q_tiles.index(slot_after)
                s_coming = warpgroup_mma(k_tile, q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(slot), phase)
                dv_coming = warpgroup_mma(weights, do_tiles.index(slot), dv, is_async=True)
                s = warpgroup_mma_wait(1, deps=[s_coming])
                p, p_slot, p_phase = hand_over_weights(
                    s, block, slot_after, p_slot, p_phase, keys, scale_log2, lse_rows, p_tiles, q_free, p_ring,
                    CAUSAL,
                )  # fmt: skip
                dv, weights, p = warpgroup_mma_wait(0, deps=[dv_coming, weights, p])
                mbarrier.arrive(do_free.index(slot), count=1)
                weights = gl.convert_layout(p.to(DTYPE), A_LAYOUT)
                slot, phase = slot_after, phase_after
            mbarrier.wait(do_full.index(slot), phase)
            dv_coming = warpgroup_mma(weights, do_tiles.index(slot), dv, is_async=True)
            dv, weights = warpgroup_mma_wait(0, deps=[dv_coming, weights])
            mbarrier.arrive(do_free.index(slot), count=1)
            slot, phase = next_slot(slot, phase, STAGES)
        store_block(dv_matrices, matrix, tile * KEYS, k_tile, dv.to(DTYPE))
        mbarrier.arrive(kv_free, count=1)
        i += 1
        item = work_item(i)


@gluon.jit
def _differentiate_keys(
    dk_ptr, sizes, scale, tiles, delta_rows, p_tiles, ring, p_ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Compute dS and dk of every tile, from the weights that the other warpgroup hands over."""
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)
    DTYPE: gl.constexpr = dk_ptr.dtype.element_ty
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, _k_tile, v_tile, do_tiles = tiles
    kv_full, kv_free, q_full, q_free, do_full, do_free = ring
    p_full, p_free = p_ring
    dk_matrices = dense_matrices_at(dk_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    no_scores = gl.zeros([KEYS, QUERIES], gl.float32, S_LAYOUT)
    slot, phase, p_slot, p_phase = 0, 0, 0, 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        dk = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        first = first_block_of(tile * KEYS, CAUSAL, QUERIES)
        mbarrier.wait(kv_full, i & 1)
        for _member in range(HEADS_PER_KV):
            for _block in range(first, gl.cdiv(n_queries, QUERIES)):
                mbarrier.wait(do_full.index(slot), phase)
                do = do_tiles.index(slot)
                dp_coming = warpgroup_mma(v_tile, do.permute((1, 0)), no_scores, use_acc=False, is_async=True)
                dp = warpgroup_mma_wait(0, deps=[dp_coming])
                dp -= delta_rows.index(slot).load(S_LAYOUT)
                mbarrier.wait(p_full.index(p_slot), p_phase)
                ds = (p_tiles.index(p_slot).load(S_LAYOUT) * dp).to(DTYPE)
                mbarrier.arrive(p_free.index(p_slot), count=1)
                p_slot, p_phase = next_slot(p_slot, p_phase, P_TILES)
                operand = gl.convert_layout(ds, A_LAYOUT)
                mbarrier.wait(q_full.index(slot), phase)
                dk_coming = warpgroup_mma(operand, q_tiles.index(slot), dk, is_async=True)
                dk, operand = warpgroup_mma_wait(0, deps=[dk_coming, operand])
                # Not earlier: some warps' loads of δ could still be running when the slot is declared free.
                mbarrier.arrive(do_free.index(slot), count=1)
                mbarrier.arrive(q_free.index(slot), count=1)
                slot, phase = next_slot(slot, phase, STAGES)
        store_block(dk_matrices, matrix, tile * KEYS, v_tile, (dk * scale).to(DTYPE))
        mbarrier.arrive(kv_free, count=1)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_wide_key_value_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, n_matrices, n_queries, n_keys, n_tiles, heads_together,
    scale, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of every tile of 64 keys from the queries that see it.

    Shapes: as for `hopper_backward_kernel`, but lse_log2 and delta are in fp32, and dq_sum_ptr is None.
    """
    gdc_wait()
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles, do_tiles = tiles_of(STAGES, QUERIES, WIDTH, DTYPE), tiles_of(STAGES, QUERIES, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(1, KEYS, WIDTH, DTYPE), tiles_of(1, KEYS, WIDTH, DTYPE)
    p_tiles = tiles_of(P_TILES, KEYS, QUERIES, gl.float32)
    lse_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERIES], PLAIN_LAYOUT)
    delta_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERIES], PLAIN_LAYOUT)
    kv_full, kv_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    q_full, q_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    do_full, do_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles.index(0), v_tiles.index(0), do_tiles)
    ring = (kv_full, kv_free, q_full, q_free, do_full, do_free)
    p_ring = (barriers(P_TILES, 1), barriers(P_TILES, 1))
    q_strides, do_strides = (stride_qb, stride_qh, stride_q), (stride_dob, stride_doh, stride_do)
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    gl.warp_specialize(
        [
            (_differentiate_values, (dv_ptr, sizes, scale_log2, tiles, lse_rows, p_tiles, ring, p_ring, CAUSAL,
                                     HEADS_PER_KV, HEAD_DIM, WIDTH, STAGES)),
            (_differentiate_keys, (dk_ptr, sizes, scale, tiles, delta_rows, p_tiles, ring, p_ring, CAUSAL,
                                   HEADS_PER_KV, HEAD_DIM, WIDTH, STAGES)),
            (load_keys, (k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, (), kv_full, kv_free,
                         HEADS_PER_KV, HEAD_DIM, WIDTH, gl.constexpr(0), gl.constexpr(1), gl.constexpr(False))),
            (load_queries, (q_ptr, lse_log2_ptr, q_strides, sizes, q_tiles, 0, lse_rows, q_full, q_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, gl.constexpr(0), KEYS, QUERIES, STAGES,
                            gl.constexpr(0), gl.constexpr(False))),
            (load_queries, (do_ptr, delta_ptr, do_strides, sizes, do_tiles, 0, delta_rows, do_full, do_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, gl.constexpr(0), KEYS, QUERIES, STAGES,
                            gl.constexpr(0), gl.constexpr(False))),
        ],
        [4, 1, 1, 1], [REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
