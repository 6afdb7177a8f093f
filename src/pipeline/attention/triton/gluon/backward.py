"""Backward pass for Hopper at head_dim up to 128: dk and dv, and dq summed in global memory by the copy engine.

Programs are persistent. Two warpgroups own 64 keys each of a tile of 128 and loop over the queries, while four more
warps move data for them (`moving`). Each warpgroup computes half of dq and needs the other's dS for it, so each waits
for the other once per step (`steps`). Source: Shah et al. 2024, FlashAttention-3; Dao 2023, FlashAttention-2,
algorithm 2.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.moving import (
    BLOCK_KEYS,
    DO_FREE,
    DQ_COLUMNS,
    GROUPS,
    KEYS,
    PARTS_WIDTH,
    PLAIN_LAYOUT,
    Q_FREE,
    add_dq,
    first_block_of,
    load_keys,
    load_queries,
)
from pipeline.attention.triton.gluon.pieces import (
    LOADING_REGISTERS,
    SIZES,
    barriers,
    dense_matrices_at,
    item_of,
    store_block,
    tiles_of,
)
from pipeline.attention.triton.gluon.steps import STAGES, hand_over_dq, step_of_halves, step_of_one


@gluon.jit
def _step(
    dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles,
    q_full, do_full, MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, WIDTH: gl.constexpr,
    TAIL: gl.constexpr, BLOCK_QUERIES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add one block of queries to a warpgroup's dk and dv, and compute this warpgroup's part of the block's dq."""
    if BLOCK_QUERIES == KEYS:
        dk, dv, dk_tail, dv_tail = step_of_one(
            dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers, ds_tiles,
            dq_tiles, q_full, do_full, MASKED, CAUSAL, MASK_KEYS, WIDTH, TAIL, GROUP,
        )  # fmt: skip
    else:
        dk, dv = step_of_halves(
            dk, dv, block, step, first_key, n_keys, scale_log2, tiles, numbers, ds_tiles, dq_tiles, q_full, do_full,
            MASKED, CAUSAL, MASK_KEYS, WIDTH, GROUP,
        )  # fmt: skip
    return dk, dv, dk_tail, dv_tail


@gluon.jit
def _differentiate(
    dk_ptr, dv_ptr, sizes, scale, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles, kv_barriers, q_full, do_full,
    CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, TAIL: gl.constexpr, BLOCK_QUERIES: gl.constexpr, IN_PAIRS: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one warpgroup's keys in every tile."""
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
        store_block(dv_matrices, matrix, first_key, tiles[2].index(GROUP), dv.to(DTYPE))
        store_block(dk_matrices, matrix, first_key, tiles[2].index(GROUP), (dk * scale).to(DTYPE))
        if TAIL:
            store_block(dv_tails, matrix, first_key, tails[1].index(GROUP), dv_tail.to(DTYPE), WIDTH)
            store_block(dk_tails, matrix, first_key, tails[1].index(GROUP), (dk_tail * scale).to(DTYPE), WIDTH)
        mbarrier.arrive(kv_free, count=1)
        i += 1
        exists, matrix, tile = item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS)
    hand_over_dq(step, GROUP)


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
    """Compute dk and dv of every tile of 128 keys from the queries that see it, and add dq / scale to dq_sum.

    Shapes: q, k, v and do are (batch, heads, rows, head_dim) by their strides; lse_parts and delta_parts are as
    `delta_kernel` writes them; dk and dv are (n_matrices, n_keys, head_dim), where n_matrices = batch · key heads;
    dq_sum is (n_matrices · HEADS_PER_KV, n_queries rounded up to whole blocks, WIDTH + TAIL) in fp32, every 64 rows in
    the order that `unpacked_kernel` reads. WIDTH and TAIL: columns of a tile and of a second one beside it; TAIL is 0
    if one is enough. MASK_KEYS: the last tile may extend past the last key. IN_PAIRS: see `item_of`. The order in which
    dq is summed is not fixed.
    """
    gdc_wait()
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    ROWS: gl.constexpr = (WIDTH if TAIL else BLOCK_QUERIES * WIDTH // 128) * KEYS // DQ_COLUMNS
    TAIL_ROWS: gl.constexpr = TAIL * KEYS // DQ_COLUMNS if TAIL else ROWS
    q_tiles, do_tiles = tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE), tiles_of(STAGES, BLOCK_QUERIES, WIDTH, DTYPE)
    k_tiles, v_tiles = tiles_of(GROUPS, KEYS, WIDTH, DTYPE), tiles_of(GROUPS, KEYS, WIDTH, DTYPE)
    tails = (0, 0, 0, 0)
    if TAIL:
        q_tail, do_tail = tiles_of(STAGES, BLOCK_QUERIES, TAIL, DTYPE), tiles_of(STAGES, BLOCK_QUERIES, TAIL, DTYPE)
        tails = (tiles_of(GROUPS, KEYS, TAIL, DTYPE), tiles_of(GROUPS, KEYS, TAIL, DTYPE), q_tail, do_tail)
    ds_tiles = tiles_of(2 * GROUPS * (BLOCK_QUERIES // KEYS), KEYS, KEYS, DTYPE)  # double-buffered
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
    # Each tuple spells out its constants: collected in a variable, they would become runtime values.
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
