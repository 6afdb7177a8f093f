"""The backward pass for Hopper up to head_dim 128: dk and dv, and dq summed in memory by the copy engine.

Two warpgroups have 64 keys each of a tile of 128 and go through the queries; what they need is moved by four warps
(`moving`); programs stay. Both need each other's half of dS for dq, of which each computes half: so they meet once a
step, through shared memory, which bounds this kernel. Source: Shah et al. 2024, FlashAttention-3; Dao 2023,
FlashAttention-2, algorithm 2.
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

from pipeline.attention.triton.gluon.moving import (
    ALL_THREADS,
    BLOCK_KEYS,
    DO_FREE,
    DQ_COLUMNS,
    DQ_FREE,
    DQ_FULL,
    DQ_THREADS,
    FREE_THREADS,
    GROUPS,
    KEYS,
    LOADING_REGISTERS,
    MEETING,
    PARTS_WIDTH,
    PLAIN_LAYOUT,
    Q_FREE,
    add_dq,
    by_thread,
    first_block_of,
    load_keys,
    load_queries,
)
from pipeline.attention.triton.gluon.pieces import (
    SIZES,
    arrive,
    as_block,
    barriers,
    dense_matrices_at,
    item_of,
    meet,
    opaque,
    tiles_of,
)
from pipeline.attention.triton.kernels.delta import PARTS

STAGES = gl.constexpr(2)  # blocks of queries at a time, for each of which two barriers have names


@gluon.jit
def _scores(keys, queries, keys_tail, queries_tail, numbers, LAYOUT: gl.constexpr, TAIL: gl.constexpr):
    """Start to multiply keys with queries, (64, queries), or values with the output's gradients, and to add numbers.

    numbers: one of each query, in parts, which a product with ones adds to all keys.
    """
    QUERIES: gl.constexpr = queries.shape[0]
    ONES_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    part = gl.arange(0, PARTS_WIDTH, gl.SliceLayout(0, ONES_LAYOUT))[None, :]
    part += gl.zeros([KEYS, PARTS_WIDTH], gl.int32, ONES_LAYOUT)
    ones = gl.where(part < PARTS, 1.0, 0.0).to(gl.bfloat16)
    found = gl.zeros([KEYS, QUERIES], gl.float32, LAYOUT)
    found = warpgroup_mma(keys, queries.permute((1, 0)), found, use_acc=False, is_async=True)
    if TAIL:
        found = warpgroup_mma(keys_tail, queries_tail.permute((1, 0)), found, is_async=True)
    return warpgroup_mma(ones, numbers.permute((1, 0)), found, is_async=True)


@gluon.jit
def _step(
    dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles,
    q_full, do_full, MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, WIDTH: gl.constexpr,
    TAIL: gl.constexpr, BLOCK_QUERIES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add what one block of queries gives to the gradients of a warpgroup's keys, and its half of their own."""
    DTYPE: gl.constexpr = ds_tiles.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_QUERIES, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    TAIL_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TAIL or WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)  # of weights and dS, which stay in registers
    A_TAIL_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, TAIL_LAYOUT, 2)
    # The half of dq that this warpgroup computes: 64 queries, or where there are no more half of the columns.
    HALF_OF_QUERIES: gl.constexpr = BLOCK_QUERIES == 128
    DQ_WIDTH: gl.constexpr = dq_tiles[GROUP].shape[0] * DQ_COLUMNS // KEYS
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DQ_WIDTH, 16])
    PRODUCTS: gl.constexpr = 2 if TAIL else 1  # that make one with all columns
    # With two copies of a step the addresses of all tiles would leave too few registers.
    own = opaque(GROUP) if CAUSAL or MASK_KEYS else GROUP
    slot, phase = step % STAGES, step // STAGES % 2
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    q, do = q_tiles.index(slot), do_tiles.index(slot)
    k_tail, v_tail, q_tail, do_tail = tails[0], tails[1], tails[2], tails[3]
    if TAIL:
        k_tail, v_tail = k_tail.index(own), v_tail.index(own)
        q_tail, do_tail = q_tail.index(slot), do_tail.index(slot)
    mbarrier.wait(q_full.index(slot), phase)
    s_coming = _scores(k_tiles.index(own), q, k_tail, q_tail, numbers[0].index(slot), S_LAYOUT, TAIL)
    mbarrier.wait(do_full.index(slot), phase)
    dp_coming = _scores(v_tiles.index(own), do, v_tail, do_tail, numbers[1].index(slot), S_LAYOUT, TAIL)
    s = warpgroup_mma_wait(PRODUCTS + 1, deps=[s_coming])
    p = gl.exp2(s * scale_log2)
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
    ds = (p * dp).to(DTYPE)
    dv_coming = warpgroup_mma(weights, do, dv, is_async=True)
    if TAIL:
        tail_weights = gl.convert_layout(weights, A_TAIL_LAYOUT)
        dv_tail_coming = warpgroup_mma(tail_weights, do_tail, dv_tail, is_async=True)
    buffer = step % 2
    ds_tiles.index(buffer * GROUPS + GROUP).store(ds)
    fence_async_shared()
    meet(MEETING, ALL_THREADS)
    dq_coming = gl.zeros([KEYS, DQ_WIDTH], gl.float32, DQ_LAYOUT)
    for group in gl.static_range(GROUPS):
        ds_of = ds_tiles.index(buffer * GROUPS + group).permute((1, 0))
        k_of = k_tiles.index(group + own - GROUP)
        if HALF_OF_QUERIES:
            ds_of = ds_of.slice(GROUP * KEYS, KEYS, 0)
        elif TAIL:
            if GROUP == 1:
                k_of = tails[0].index(group + own - GROUP)
        else:
            k_of = k_of.slice(GROUP * DQ_WIDTH, DQ_WIDTH, 1)
        dq_coming = warpgroup_mma(ds_of, k_of, dq_coming, use_acc=group > 0, is_async=True)
    if TAIL:
        dv, dv_tail, weights, tail_weights = warpgroup_mma_wait(
            GROUPS, deps=[dv_coming, dv_tail_coming, weights, tail_weights]
        )
    else:
        dv, weights = warpgroup_mma_wait(GROUPS, deps=[dv_coming, weights])
    arrive(DO_FREE + slot, FREE_THREADS)
    ds_operand = gl.convert_layout(ds, A_LAYOUT)
    dk_coming = warpgroup_mma(ds_operand, q, dk, is_async=True)
    if TAIL:
        tail_operand = gl.convert_layout(ds_operand, A_TAIL_LAYOUT)
        dk_tail_coming = warpgroup_mma(tail_operand, q_tail, dk_tail, is_async=True)
    dq_part = warpgroup_mma_wait(PRODUCTS, deps=[dq_coming])
    meet(DQ_FREE + GROUP, DQ_THREADS)
    dq_tiles[GROUP].store(by_thread(dq_part))
    fence_async_shared()
    arrive(DQ_FULL + GROUP, DQ_THREADS)
    if TAIL:
        dk, dk_tail, ds_operand, tail_operand = warpgroup_mma_wait(
            0, deps=[dk_coming, dk_tail_coming, ds_operand, tail_operand]
        )
    else:
        dk, ds_operand = warpgroup_mma_wait(0, deps=[dk_coming, ds_operand])
    arrive(Q_FREE + slot, FREE_THREADS)
    return dk, dv, dk_tail, dv_tail


@gluon.jit
def _leave(matrices, matrix, first_key, column, tile, gradient):
    """Copy a gradient to memory by way of values of this warpgroup, which nobody needs any more."""
    tile.store(gradient)
    fence_async_shared()
    tma.async_copy_shared_to_global(matrices, [0, matrix, first_key, column], as_block(tile))
    tma.store_wait(0)


@gluon.jit
def _differentiate(
    dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles, kv_barriers, q_full, do_full,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, TAIL: gl.constexpr, BLOCK_QUERIES: gl.constexpr, IN_PAIRS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute the gradients of one warpgroup's keys and values of every tile."""
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    TAIL_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TAIL or WIDTH, 16])
    DTYPE: gl.constexpr = dk_ptr.dtype.element_ty
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    kv_full, kv_free = kv_barriers
    dk_matrices = dense_matrices_at(dk_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    dv_matrices = dense_matrices_at(dv_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    if TAIL:
        dk_tails = dense_matrices_at(dk_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, TAIL)
        dv_tails = dense_matrices_at(dv_ptr, n_matrices, n_keys, HEAD_DIM, KEYS, TAIL)
    blocks = gl.cdiv(n_queries, BLOCK_QUERIES)
    step = 0
    i = 0
    exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    while exists:
        first_key = tile * BLOCK_KEYS + GROUP * KEYS
        dk = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        dv = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        if TAIL:
            dk_tail = gl.zeros([KEYS, TAIL], gl.float32, TAIL_LAYOUT)
            dv_tail = gl.zeros([KEYS, TAIL], gl.float32, TAIL_LAYOUT)
        else:
            dk_tail, dv_tail = 0, 0
        mbarrier.wait(kv_full, i & 1)
        first = first_block_of(tile * BLOCK_KEYS, CAUSAL, BLOCK_QUERIES)
        last_masked = first
        if CAUSAL:
            last_masked += BLOCK_KEYS // BLOCK_QUERIES
        if MASK_KEYS:
            last_masked = gl.where((tile + 1) * BLOCK_KEYS > n_keys, blocks, last_masked)
        last_masked = gl.minimum(last_masked, blocks)
        for _member in range(HEADS_PER_KV):
            if CAUSAL or MASK_KEYS:
                for block in range(first, last_masked):
                    dk, dv, dk_tail, dv_tail = _step(
                        dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers,
                        ds_tiles, dq_tiles, q_full, do_full, True, CAUSAL, MASK_KEYS, WIDTH, TAIL, BLOCK_QUERIES, GROUP,
                    )  # fmt: skip
                    step += 1
            for block in range(gl.maximum(first, last_masked), blocks):
                dk, dv, dk_tail, dv_tail = _step(
                    dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers,
                    ds_tiles, dq_tiles, q_full, do_full, False, CAUSAL, MASK_KEYS, WIDTH, TAIL, BLOCK_QUERIES, GROUP,
                )  # fmt: skip
                step += 1
        _leave(dv_matrices, matrix, first_key, 0, tiles[2].index(GROUP), dv.to(DTYPE))
        _leave(dk_matrices, matrix, first_key, 0, tiles[2].index(GROUP), (dk * scale).to(DTYPE))
        if TAIL:
            _leave(dv_tails, matrix, first_key, WIDTH, tails[1].index(GROUP), dv_tail.to(DTYPE))
            _leave(dk_tails, matrix, first_key, WIDTH, tails[1].index(GROUP), (dk_tail * scale).to(DTYPE))
        mbarrier.arrive(kv_free, count=1)
        i += 1
        exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)


@gluon.jit(do_not_specialize=SIZES)
def hopper_backward_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_parts_ptr, delta_parts_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, n_matrices, n_queries, n_keys, n_tiles, heads_together,
    scale, scale_log2,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, TAIL: gl.constexpr, BLOCK_QUERIES: gl.constexpr, REGISTERS: gl.constexpr,
    IN_PAIRS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv from every tile of 128 keys and the queries that see it, and add dq / scale to dq_sum.

    Shapes: q, k, v and do as their strides say; lse_parts and delta_parts as `delta_kernel` writes them; dk and
    dv (n_matrices, n_keys, head_dim), where n_matrices are batch · heads of keys; dq_sum (n_matrices · HEADS_PER_KV,
    n_queries in whole blocks, WIDTH + TAIL) fp32, each 64 rows in the order that `unpacked_kernel` reads. WIDTH and
    TAIL: the columns of a tile and of a second beside it, 0 where one is enough. MASK_KEYS: the last tile may have keys
    beyond the last. IN_PAIRS: see `item_of`. The sums of dq are in no fixed order.
    """
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    ROWS: gl.constexpr = (WIDTH if TAIL else BLOCK_QUERIES * WIDTH // 128) * KEYS // DQ_COLUMNS
    TAIL_ROWS: gl.constexpr = TAIL * KEYS // DQ_COLUMNS if TAIL else ROWS
    q_tiles, do_tiles = tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE), tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(GROUPS, KEYS, WIDTH, DTYPE), tiles_of(GROUPS, KEYS, WIDTH, DTYPE)
    tails = (0, 0, 0, 0)
    if TAIL:
        q_tail, do_tail = tiles_of(STAGES, BLOCK_QUERIES, TAIL, DTYPE), tiles_of(STAGES, BLOCK_QUERIES, TAIL, DTYPE)
        tails = (tiles_of(GROUPS, KEYS, TAIL, DTYPE), tiles_of(GROUPS, KEYS, TAIL, DTYPE), q_tail, do_tail)
    ds_tiles = tiles_of(2 * GROUPS, KEYS, BLOCK_QUERIES, DTYPE)  # one is read while the next is written
    dq_tiles = (
        gl.allocate_shared_memory(gl.float32, [ROWS, DQ_COLUMNS], PLAIN_LAYOUT),
        gl.allocate_shared_memory(gl.float32, [TAIL_ROWS, DQ_COLUMNS], PLAIN_LAYOUT),
    )
    lses = tiles_of(STAGES, BLOCK_QUERIES, PARTS_WIDTH, gl.bfloat16)
    deltas = tiles_of(STAGES, BLOCK_QUERIES, PARTS_WIDTH, gl.bfloat16)
    kv_barriers = (barriers(1, 1).index(0), barriers(1, GROUPS).index(0))
    q_full, do_full = barriers(STAGES, 1), barriers(STAGES, 1)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles, numbers = (q_tiles, k_tiles, v_tiles, do_tiles), (lses, deltas)
    q_strides, do_strides = (stride_qb, stride_qh, stride_q), (stride_dob, stride_doh, stride_do)
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    # Constants are written out each time: a variable would make numbers of run time of them.
    gl.warp_specialize(
        [
            (_differentiate, (dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles,
                              kv_barriers, q_full, do_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, TAIL,
                              BLOCK_QUERIES, IN_PAIRS, gl.constexpr(0))),
            (_differentiate, (dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles,
                              kv_barriers, q_full, do_full, CAUSAL, MASK_KEYS, HEADS_PER_KV, HEAD_DIM, WIDTH, TAIL,
                              BLOCK_QUERIES, IN_PAIRS, gl.constexpr(1))),
            (load_keys, (k_ptr, v_ptr, k_strides, v_strides, sizes, k_tiles, v_tiles, tails, kv_barriers[0],
                         kv_barriers[1], HEADS_PER_KV, HEAD_DIM, WIDTH, TAIL, GROUPS, IN_PAIRS)),
            (load_queries, (q_ptr, lse_parts_ptr, q_strides, sizes, q_tiles, tails[2], lses, q_full, 0, CAUSAL,
                            HEADS_PER_KV, HEAD_DIM, WIDTH, TAIL, BLOCK_KEYS, BLOCK_QUERIES, STAGES, Q_FREE, IN_PAIRS)),
            (load_queries, (do_ptr, delta_parts_ptr, do_strides, sizes, do_tiles, tails[3], deltas, do_full, 0, CAUSAL,
                            HEADS_PER_KV, HEAD_DIM, WIDTH, TAIL, BLOCK_KEYS, BLOCK_QUERIES, STAGES, DO_FREE, IN_PAIRS)),
            (add_dq, (dq_sum_ptr, sizes, dq_tiles, CAUSAL, HEADS_PER_KV, BLOCK_KEYS, BLOCK_QUERIES, IN_PAIRS)),
        ],
        [4, 1, 1, 1, 1],
        [REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
