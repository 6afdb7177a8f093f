"""The backward pass for Hopper at head_dim 136 to 256: as `backward`, but that both warpgroups share 64 keys.

Wider, sums of two gradients of 64 keys do not fit a warpgroup's registers. So each has half of the queries for scores
and half of head_dim for gradients, and weights and dS go from one to the other through shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pipeline.attention.triton.gluon.backward import (
    GROUPS,
    KEYS,
    LOADING_REGISTERS,
    ROW_LAYOUT,
    first_block_of,
    load_keys,
    load_queries,
)
from pipeline.attention.triton.gluon.pieces import (
    SIZES,
    as_block,
    barriers,
    dense_matrices_at,
    matrix_and_tile,
    next_slot,
    tiles_of,
    work_item,
)
from pipeline.compat.gluon_private import tma_reduce_add

QUERIES = gl.constexpr(64)  # of a block
PART = gl.constexpr(64)  # columns of dq that are summed at a time


@gluon.jit
def _add_to_dq(dq, part, dq_tile, matrix, block, COLUMN: gl.constexpr):
    """Add some columns of a block of queries to dq in memory."""
    tma.store_wait(0)  # until the part before has been read
    dq_tile.store(part)
    fence_async_shared()
    tma_reduce_add(dq, [0, matrix, block * QUERIES, COLUMN], as_block(dq_tile))


@gluon.jit
def _differentiate(
    dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, p_tiles, ds_tiles, dq_tiles, barriers_of,
    ds_full, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, DO_STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute one warpgroup's columns of the gradients of every tile."""
    HALF: gl.constexpr = WIDTH // 2
    SEEN: gl.constexpr = QUERIES // 2  # this warpgroup's queries of the scores
    FIRST_COLUMN: gl.constexpr = GROUP * HALF
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SEEN, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, PART, 16])
    DTYPE: gl.constexpr = dk_ptr.dtype.element_ty
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tile, v_tile, do_tiles = tiles
    lse_rows, delta_rows = rows
    kv_full, kv_free, q_full, q_free, do_full, do_free = barriers_of
    dq = dense_matrices_at(dq_sum_ptr, n_matrices * HEADS_PER_KV, n_queries, HEAD_DIM, QUERIES, PART)
    no_scores = gl.zeros([KEYS, SEEN], gl.float32, S_LAYOUT)
    no_dq = gl.zeros([QUERIES, PART], gl.float32, DQ_LAYOUT)
    dq_tile = dq_tiles.index(GROUP)
    slot, phase, do_slot, do_phase, step = 0, 0, 0, 0, 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        dk = gl.zeros([KEYS, HALF], gl.float32, G_LAYOUT)
        dv = gl.zeros([KEYS, HALF], gl.float32, G_LAYOUT)
        mbarrier.wait(kv_full, i & 1)
        first = first_block_of(tile * KEYS, CAUSAL, QUERIES)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            for block in range(first, gl.cdiv(n_queries, QUERIES)):
                q, do = q_tiles.index(slot), do_tiles.index(do_slot)
                buffer = step & 1
                mbarrier.wait(q_full.index(slot), phase)
                q_seen = q.slice(GROUP * SEEN, SEEN, 0).permute((1, 0))
                s_coming = warpgroup_mma(k_tile, q_seen, no_scores, use_acc=False, is_async=True)
                mbarrier.wait(do_full.index(do_slot), do_phase)
                do_seen = do.slice(GROUP * SEEN, SEEN, 0).permute((1, 0))
                dp_coming = warpgroup_mma(v_tile, do_seen, no_scores, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(1, deps=[s_coming])
                lse = lse_rows.index(slot).slice(GROUP * SEEN, SEEN, 1).load(S_LAYOUT)
                p = gl.exp2(s * scale_log2 - lse)
                keys = (tile * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT)))[:, None]
                if CAUSAL:
                    seen = block * QUERIES + GROUP * SEEN + gl.arange(0, SEEN, gl.SliceLayout(0, S_LAYOUT))
                    p = gl.where(keys <= seen[None, :], p, 0.0)
                if MASK_KEYS:
                    # A score of 0 may tower above every real one, its weight be infinite, and that times 0 no number.
                    p = gl.where(keys < n_keys, p, 0.0)
                p_tiles.index(buffer).slice(GROUP * SEEN, SEEN, 1).store(p.to(DTYPE))
                dp = warpgroup_mma_wait(0, deps=[dp_coming])
                delta = delta_rows.index(do_slot).slice(GROUP * SEEN, SEEN, 1).load(S_LAYOUT)
                ds_tiles.index(buffer).slice(GROUP * SEEN, SEEN, 1).store((p * (dp - delta)).to(DTYPE))
                fence_async_shared()
                mbarrier.arrive(ds_full.index(buffer), count=1)
                mbarrier.wait(ds_full.index(buffer), (step >> 1) & 1)
                weights, ds = p_tiles.index(buffer), ds_tiles.index(buffer)
                ds_by_query = ds.permute((1, 0))
                dq_coming = warpgroup_mma(
                    ds_by_query, k_tile.slice(FIRST_COLUMN, PART, 1), no_dq, use_acc=False, is_async=True
                )
                dv_coming = warpgroup_mma(weights, do.slice(FIRST_COLUMN, HALF, 1), dv, is_async=True)
                dq_part = warpgroup_mma_wait(1, deps=[dq_coming])
                _add_to_dq(dq, dq_part, dq_tile, of_queries, block, FIRST_COLUMN)
                dq_coming = warpgroup_mma(
                    ds_by_query, k_tile.slice(FIRST_COLUMN + PART, PART, 1), no_dq, use_acc=False, is_async=True
                )
                dv = warpgroup_mma_wait(1, deps=[dv_coming])
                mbarrier.arrive(do_free.index(do_slot), count=1)
                dk_coming = warpgroup_mma(ds, q.slice(FIRST_COLUMN, HALF, 1), dk, is_async=True)
                dq_part = warpgroup_mma_wait(1, deps=[dq_coming])
                _add_to_dq(dq, dq_part, dq_tile, of_queries, block, FIRST_COLUMN + PART)
                dk = warpgroup_mma_wait(0, deps=[dk_coming])
                mbarrier.arrive(q_free.index(slot), count=1)
                step += 1
                slot, phase = next_slot(slot, phase, STAGES)
                do_slot, do_phase = next_slot(do_slot, do_phase, DO_STAGES)
        mbarrier.arrive(kv_free, count=1)
        key = tile * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, G_LAYOUT))
        column = FIRST_COLUMN + gl.arange(0, HALF, gl.SliceLayout(0, G_LAYOUT))
        at = (matrix.to(gl.int64) * n_keys + key)[:, None] * HEAD_DIM + column[None, :]
        exists = (key < n_keys)[:, None] & (column < HEAD_DIM)[None, :]
        gl.store(dv_ptr + at, dv.to(DTYPE), mask=exists)
        gl.store(dk_ptr + at, (dk * scale).to(DTYPE), mask=exists)
        i += 1
        item = work_item(i)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)
def hopper_wide_backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, n_matrices, n_queries, n_keys, n_tiles, heads_together,
    scale, scale_log2,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, STAGES: gl.constexpr, DO_STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Do as `hopper_backward_kernel`, from tiles of 64 keys; DO_STAGES: those of the output's gradient."""
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles, do_tiles = tiles_of(STAGES, QUERIES, WIDTH, DTYPE), tiles_of(DO_STAGES, QUERIES, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(1, KEYS, WIDTH, DTYPE), tiles_of(1, KEYS, WIDTH, DTYPE)
    p_tiles, ds_tiles = tiles_of(2, KEYS, QUERIES, DTYPE), tiles_of(2, KEYS, QUERIES, DTYPE)
    dq_tiles = tiles_of(GROUPS, QUERIES, PART, gl.float32)
    lse_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, QUERIES], ROW_LAYOUT)
    delta_rows = gl.allocate_shared_memory(gl.float32, [DO_STAGES, 1, QUERIES], ROW_LAYOUT)
    kv_full, kv_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    q_full, q_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    do_full, do_free = barriers(DO_STAGES, 1), barriers(DO_STAGES, GROUPS)
    ds_full = barriers(2, GROUPS)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles, rows = (q_tiles, k_tiles.index(0), v_tiles.index(0), do_tiles), (lse_rows, delta_rows)
    ring = (kv_full, kv_free, q_full, q_free, do_full, do_free)
    q_strides, do_strides = (stride_qb, stride_qh, stride_q), (stride_dob, stride_doh, stride_do)
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    gl.warp_specialize(
        [
            (_differentiate, (dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, p_tiles, ds_tiles,
                              dq_tiles, ring, ds_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, STAGES,
                              DO_STAGES, gl.constexpr(0))),
            (_differentiate, (dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, p_tiles, ds_tiles,
                              dq_tiles, ring, ds_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, STAGES,
                              DO_STAGES, gl.constexpr(1))),
            (load_keys, (k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, kv_full, kv_free,
                         HEADS_PER_KV, HEAD_DIM, WIDTH, gl.constexpr(1))),
            (load_queries, (q_ptr, lse_log2_ptr, q_strides, sizes, q_tiles, lse_rows, q_full, q_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, KEYS, QUERIES, STAGES)),
            (load_queries, (do_ptr, delta_ptr, do_strides, sizes, do_tiles, delta_rows, do_full, do_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, KEYS, QUERIES, DO_STAGES)),
        ],
        [4, 1, 1, 1], [REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
