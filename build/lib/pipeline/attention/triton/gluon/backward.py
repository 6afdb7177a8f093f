"""The backward pass for Hopper up to head_dim 128: dk and dv, and dq summed in memory by the copy engine.

Three warps load, two warpgroups have 64 keys each of a tile of 128 and go through the queries; programs stay. Both need
each other's half of dS for dq, of which each computes half: so they meet once a step, through shared memory. Source:
Shah et al. 2024, FlashAttention-3; Dao 2023, FlashAttention-2, algorithm 2.
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

from pipeline.attention.triton.gluon.pieces import (
    SIZES,
    as_block,
    barriers,
    dense_matrices_at,
    load,
    matrices_at,
    matrix_and_tile,
    next_slot,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.kernels.delta import row_length
from pipeline.compat.gluon_private import tma_reduce_add

KEYS = gl.constexpr(64)  # of a warpgroup: as many as one wgmma has rows
GROUPS = gl.constexpr(2)
BLOCK_KEYS = gl.constexpr(128)
LOADING_REGISTERS = gl.constexpr(24)  # the fewest there are
ROW_LAYOUT = gl.constexpr(gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=2))


@gluon.jit
def rows_at(pointer, n_matrices, n_queries, BLOCK: gl.constexpr):
    """Describe a number a query of every matrix, as `delta_kernel` writes them, in blocks of one matrix."""
    return tma.make_tensor_descriptor(
        pointer, [n_matrices, n_queries], [row_length(n_queries), 1], [1, BLOCK], ROW_LAYOUT
    )


@gluon.jit
def first_block_of(first_key, CAUSAL: gl.constexpr, BLOCK_QUERIES: gl.constexpr):
    """Return the first block of queries that see keys of a tile."""
    return first_key // BLOCK_QUERIES if CAUSAL else 0


@gluon.jit
def load_keys(
    k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, full, free, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, PARTS: gl.constexpr,
):  # fmt: skip
    """Load every tile of keys and values, in parts of 64."""
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    kv_heads = heads // HEADS_PER_KV
    k = matrices_at(k_ptr, n_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, KEYS, WIDTH)
    v = matrices_at(v_ptr, n_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, KEYS, WIDTH)
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        mbarrier.wait(free, (i & 1) ^ 1)
        mbarrier.expect(full, PARTS * (k.block_type.nbytes + v.block_type.nbytes))
        for part in gl.static_range(PARTS):
            first_key = (tile * PARTS + part) * KEYS
            load(k, matrix, kv_heads, first_key, full, k_tiles.index(part))
            load(v, matrix, kv_heads, first_key, full, v_tiles.index(part))
        i += 1
        item = work_item(i)


@gluon.jit
def load_queries(
    pointer, number_ptr, strides, sizes, tiles, numbers, full, free, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Load the queries that see a tile of keys, or the output's gradients there, and what there is a number of each.

    They come head after head of those that share the keys.
    """
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    rows = matrices_at(pointer, n_matrices * HEADS_PER_KV, heads, n_queries, strides, HEAD_DIM, BLOCK_QUERIES, WIDTH)
    number = rows_at(number_ptr, n_matrices * HEADS_PER_KV, n_queries, BLOCK_QUERIES)
    slot, phase = 0, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first = first_block_of(tile * BLOCK_KEYS, CAUSAL, BLOCK_QUERIES)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            for block in range(first, gl.cdiv(n_queries, BLOCK_QUERIES)):
                mbarrier.wait(free.index(slot), phase)
                mbarrier.expect(full.index(slot), rows.block_type.nbytes + number.block_type.nbytes)
                load(rows, of_queries, heads, block * BLOCK_QUERIES, full.index(slot), tiles.index(slot))
                tma.async_copy_global_to_shared(
                    number, [of_queries, block * BLOCK_QUERIES], full.index(slot), numbers.index(slot)
                )
                slot, phase = next_slot(slot, phase, STAGES)
        i += 1
        item = work_item(i)


@gluon.jit
def _step(
    dk, dv, block, slot, phase, step, first_key, matrix, n_keys, dq, scale_log2, tiles, rows, ds_tiles, dq_tiles,
    barriers_of, ds_full, MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_QUERIES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a warpgroup's keys, and its half of their own."""
    DTYPE: gl.constexpr = ds_tiles.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_QUERIES, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)  # of weights and dS, which stay in registers
    # The half of dq that this warpgroup computes: 64 queries, or where there are no more half of the columns.
    HALF_OF_QUERIES: gl.constexpr = BLOCK_QUERIES == 128
    DQ_WIDTH: gl.constexpr = WIDTH if HALF_OF_QUERIES else WIDTH // 2
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DQ_WIDTH, 16])
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    lse_rows, delta_rows = rows
    kv_full, kv_free, q_full, q_free, do_full, do_free = barriers_of
    no_scores = gl.zeros([KEYS, BLOCK_QUERIES], gl.float32, S_LAYOUT)
    q, do = q_tiles.index(slot), do_tiles.index(slot)
    buffer = step & 1
    mbarrier.wait(q_full.index(slot), phase)
    s_coming = warpgroup_mma(k_tiles.index(GROUP), q.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    mbarrier.wait(do_full.index(slot), phase)
    dp_coming = warpgroup_mma(v_tiles.index(GROUP), do.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s_coming])
    p = gl.exp2(s * scale_log2 - lse_rows.index(slot).load(S_LAYOUT))
    if MASKED:
        keys = (first_key + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT)))[:, None]
        if CAUSAL:
            queries = block * BLOCK_QUERIES + gl.arange(0, BLOCK_QUERIES, gl.SliceLayout(0, S_LAYOUT))
            p = gl.where(keys <= queries[None, :], p, 0.0)
        if MASK_KEYS:
            # A score of 0 may tower above every real one, and its weight be infinite: times 0 that is no number.
            p = gl.where(keys < n_keys, p, 0.0)
    weights = gl.convert_layout(p.to(DTYPE), A_LAYOUT)
    dp = warpgroup_mma_wait(0, deps=[dp_coming])
    ds = (p * (dp - delta_rows.index(slot).load(S_LAYOUT))).to(DTYPE)
    dv_coming = warpgroup_mma(weights, do, dv, is_async=True)
    ds_tiles.index(buffer * GROUPS + GROUP).store(ds)
    fence_async_shared()
    mbarrier.arrive(ds_full.index(buffer), count=1)
    mbarrier.wait(ds_full.index(buffer), (step >> 1) & 1)
    dq_coming = gl.zeros([KEYS, DQ_WIDTH], gl.float32, DQ_LAYOUT)
    for group in gl.static_range(GROUPS):
        ds_of = ds_tiles.index(buffer * GROUPS + group).permute((1, 0))
        k_of = k_tiles.index(group)
        if HALF_OF_QUERIES:
            ds_of = ds_of.slice(GROUP * KEYS, KEYS, 0)
        else:
            k_of = k_of.slice(GROUP * DQ_WIDTH, DQ_WIDTH, 1)
        dq_coming = warpgroup_mma(ds_of, k_of, dq_coming, use_acc=group > 0, is_async=True)
    dv, weights = warpgroup_mma_wait(2, deps=[dv_coming, weights])
    mbarrier.arrive(do_free.index(slot), count=1)
    ds_operand = gl.convert_layout(ds, A_LAYOUT)
    dk_coming = warpgroup_mma(ds_operand, q, dk, is_async=True)
    dq_part = warpgroup_mma_wait(1, deps=[dq_coming])
    tma.store_wait(0)  # until the part before has been read
    dq_tiles.index(GROUP).store(dq_part)
    fence_async_shared()
    if HALF_OF_QUERIES:
        tma_reduce_add(dq, [0, matrix, block * BLOCK_QUERIES + GROUP * KEYS, 0], as_block(dq_tiles.index(GROUP)))
    else:
        tma_reduce_add(dq, [0, matrix, block * BLOCK_QUERIES, GROUP * DQ_WIDTH], as_block(dq_tiles.index(GROUP)))
    dk, ds_operand = warpgroup_mma_wait(0, deps=[dk_coming, ds_operand])
    mbarrier.arrive(q_free.index(slot), count=1)
    return dk, dv


@gluon.jit
def _differentiate(
    dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, ds_tiles, dq_tiles, barriers_of, ds_full,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, BLOCK_QUERIES: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute the gradients of one warpgroup's keys and values of every tile."""
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    DTYPE: gl.constexpr = dk_ptr.dtype.element_ty
    DQ_WIDTH: gl.constexpr = dq_tiles.shape[2]
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    kv_full, kv_free, q_full, q_free, do_full, do_free = barriers_of
    dq = dense_matrices_at(dq_sum_ptr, n_matrices * HEADS_PER_KV, n_queries, HEAD_DIM, KEYS, DQ_WIDTH)
    dk_matrices = dense_matrices_at(dk_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    dv_matrices = dense_matrices_at(dv_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    slot, phase, step = 0, 0, 0
    i = 0
    item = work_item(i)
    blocks = gl.cdiv(n_queries, BLOCK_QUERIES)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_key = tile * BLOCK_KEYS + GROUP * KEYS
        dk = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        dv = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        mbarrier.wait(kv_full, i & 1)
        first = first_block_of(tile * BLOCK_KEYS, CAUSAL, BLOCK_QUERIES)
        last_masked = first
        if CAUSAL:
            last_masked += BLOCK_KEYS // BLOCK_QUERIES
        if MASK_KEYS:
            last_masked = gl.where((tile + 1) * BLOCK_KEYS > n_keys, blocks, last_masked)
        last_masked = gl.minimum(last_masked, blocks)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            if CAUSAL or MASK_KEYS:
                for block in range(first, last_masked):
                    dk, dv = _step(
                        dk, dv, block, slot, phase, step, first_key, of_queries, n_keys, dq, scale_log2, tiles, rows,
                        ds_tiles, dq_tiles, barriers_of, ds_full, True, CAUSAL, MASK_KEYS, WIDTH, BLOCK_QUERIES, GROUP,
                    )  # fmt: skip
                    step += 1
                    slot, phase = next_slot(slot, phase, STAGES)
            for block in range(gl.maximum(first, last_masked), blocks):
                dk, dv = _step(
                    dk, dv, block, slot, phase, step, first_key, of_queries, n_keys, dq, scale_log2, tiles, rows,
                    ds_tiles, dq_tiles, barriers_of, ds_full, False, CAUSAL, MASK_KEYS, WIDTH, BLOCK_QUERIES, GROUP,
                )  # fmt: skip
                step += 1
                slot, phase = next_slot(slot, phase, STAGES)
        # They leave by way of this warpgroup's values, which nobody needs any more.
        out = v_tiles.index(GROUP)
        out.store(dv.to(DTYPE))
        fence_async_shared()
        tma.async_copy_shared_to_global(dv_matrices, [0, matrix, first_key, 0], as_block(out))
        tma.store_wait(0)
        out.store((dk * scale).to(DTYPE))
        fence_async_shared()
        tma.async_copy_shared_to_global(dk_matrices, [0, matrix, first_key, 0], as_block(out))
        tma.store_wait(0)
        mbarrier.arrive(kv_free, count=1)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, n_matrices, n_queries, n_keys, n_tiles, heads_together,
    scale, scale_log2,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, BLOCK_QUERIES: gl.constexpr, STAGES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv from every tile of 128 keys and the queries that see it, and add dq / scale to dq_sum.

    Shapes: q, k, v and do as their strides say; lse_log2 and delta as `delta_kernel` writes them; dk and dv
    (n_matrices, n_keys, head_dim), where n_matrices are batch · heads of keys; dq_sum (n_matrices · HEADS_PER_KV,
    n_queries, head_dim) fp32. MASK_KEYS: the last tile may have keys beyond the last. The sums of dq are in no fixed
    order.
    """
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles, do_tiles = tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE), tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(GROUPS, KEYS, WIDTH, DTYPE), tiles_of(GROUPS, KEYS, WIDTH, DTYPE)
    ds_tiles = tiles_of(2 * GROUPS, KEYS, BLOCK_QUERIES, DTYPE)  # one is read while the next is written
    dq_tiles = tiles_of(GROUPS, KEYS, BLOCK_QUERIES * WIDTH // 128, gl.float32)
    lse_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_QUERIES], ROW_LAYOUT)
    delta_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_QUERIES], ROW_LAYOUT)
    kv_full, kv_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    q_full, q_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    do_full, do_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    ds_full = barriers(2, GROUPS)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles, rows = (q_tiles, k_tiles, v_tiles, do_tiles), (lse_rows, delta_rows)
    ring = (kv_full, kv_free, q_full, q_free, do_full, do_free)
    q_strides, do_strides = (stride_qb, stride_qh, stride_q), (stride_dob, stride_doh, stride_do)
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    # Constants are written out each time: a variable would make numbers of run time of them.
    gl.warp_specialize(
        [
            (_differentiate, (dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, ds_tiles, dq_tiles,
                              ring, ds_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_QUERIES,
                              STAGES, gl.constexpr(0))),
            (_differentiate, (dq_sum_ptr, dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, rows, ds_tiles, dq_tiles,
                              ring, ds_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_QUERIES,
                              STAGES, gl.constexpr(1))),
            (load_keys, (k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, kv_full, kv_free,
                         HEADS_PER_KV, HEAD_DIM, WIDTH, GROUPS)),
            (load_queries, (q_ptr, lse_log2_ptr, q_strides, sizes, q_tiles, lse_rows, q_full, q_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_KEYS, BLOCK_QUERIES, STAGES)),
            (load_queries, (do_ptr, delta_ptr, do_strides, sizes, do_tiles, delta_rows, do_full, do_free,
                            CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_KEYS, BLOCK_QUERIES, STAGES)),
        ],
        [4, 1, 1, 1], [REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
