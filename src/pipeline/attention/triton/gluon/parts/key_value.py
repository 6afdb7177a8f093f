"""dk and dv in fp32 for Hopper; dq has its own kernel (`query`).

Of the same 64 keys, one warpgroup computes the weights and dv, the other dS and dk. The weights that dS needs pass
through shared memory in one direction, so the first warpgroup can run ahead.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.key_value_wide import P_TILES, hand_over_weights
from pipeline.attention.triton.gluon.moving import GROUPS, KEYS, PLAIN_LAYOUT, first_block_of, rows_at
from pipeline.attention.triton.gluon.parts.products import in_parts, load_parts, start_product, start_scores, store_rows
from pipeline.attention.triton.gluon.pieces import (
    LOADING_REGISTERS,
    SIZES,
    barriers,
    dense_matrices_at,
    matrix_and_tile,
    next_slot,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.kernels.parts import PARTS

STAGES = gl.constexpr(2)


@gluon.jit
def _load_keys(
    k_ptr, v_ptr, sizes, k_tiles, v_tiles, full, free, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr
):  # fmt: skip
    """Load every tile of keys and values."""
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    k = dense_matrices_at(k_ptr, PARTS * n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    v = dense_matrices_at(v_ptr, PARTS * n_matrices, n_keys, HEAD_DIM, KEYS, WIDTH)
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        mbarrier.wait(free, (i & 1) ^ 1)
        mbarrier.expect(full, PARTS * (k.block_type.nbytes + v.block_type.nbytes))
        load_parts(k, matrix, n_matrices, tile * KEYS, full, k_tiles, 0)
        load_parts(v, matrix, n_matrices, tile * KEYS, full, v_tiles, 0)
        i += 1
        item = work_item(i)


@gluon.jit
def _load_queries(
    pointer, number_ptr, sizes, tiles, numbers, full, free, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
):  # fmt: skip
    """Load q, or do, of the queries that see each tile of keys, and with it LSE, or δ."""
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    of_all = n_matrices * HEADS_PER_KV
    rows = dense_matrices_at(pointer, PARTS * of_all, n_queries, HEAD_DIM, BLOCK_QUERIES, WIDTH)
    number = rows_at(number_ptr, of_all, n_queries, BLOCK_QUERIES)
    slot, phase = 0, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first = first_block_of(tile * KEYS, CAUSAL, BLOCK_QUERIES)
        for member in range(HEADS_PER_KV):
            of_queries = matrix * HEADS_PER_KV + member
            for block in range(first, gl.cdiv(n_queries, BLOCK_QUERIES)):
                mbarrier.wait(free.index(slot), phase)
                mbarrier.expect(full.index(slot), PARTS * rows.block_type.nbytes + number.block_type.nbytes)
                load_parts(rows, of_queries, of_all, block * BLOCK_QUERIES, full.index(slot), tiles, slot * PARTS)
                tma.async_copy_global_to_shared(
                    number, [of_queries, block * BLOCK_QUERIES], full.index(slot), numbers.index(slot)
                )
                slot, phase = next_slot(slot, phase, STAGES)
        i += 1
        item = work_item(i)


@gluon.jit
def _differentiate_values(
    dv_ptr, sizes, scale_log2, tiles, lse_rows, p_tiles, ring, p_ring, CAUSAL: gl.constexpr,
    HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
):  # fmt: skip
    """Compute the weights and dv of every tile."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_QUERIES, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    kv_full, kv_free, q_full, q_free, do_full, do_free = ring
    no_scores = gl.zeros([KEYS, BLOCK_QUERIES], gl.float32, S_LAYOUT)
    no_sum = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
    slot, phase, p_slot, p_phase = 0, 0, 0, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        dv = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        keys = (tile * KEYS + gl.arange(0, KEYS, gl.SliceLayout(1, S_LAYOUT)))[:, None]
        first = first_block_of(tile * KEYS, CAUSAL, BLOCK_QUERIES)
        mbarrier.wait(kv_full, i & 1)
        for _member in range(HEADS_PER_KV):
            for block in range(first, gl.cdiv(n_queries, BLOCK_QUERIES)):
                mbarrier.wait(q_full.index(slot), phase)
                s = start_scores(k_tiles, 0, q_tiles, slot * PARTS, no_scores, True)
                s = warpgroup_mma_wait(0, deps=[s])
                p, p_slot, p_phase = hand_over_weights(
                    s, block, slot, p_slot, p_phase, keys, scale_log2, lse_rows, p_tiles, q_free, p_ring, CAUSAL,
                )  # fmt: skip
                parts = in_parts(p, A_LAYOUT)
                mbarrier.wait(do_full.index(slot), phase)
                of_block = start_product(parts, do_tiles, slot * PARTS, no_sum)
                of_block, _0, _1, _2 = warpgroup_mma_wait(0, deps=[of_block, parts[0], parts[1], parts[2]])
                mbarrier.arrive(do_free.index(slot), count=1)
                dv += of_block
                slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.arrive(kv_free, count=1)
        store_rows(dv_ptr, matrix, tile * KEYS, n_keys, dv, HEAD_DIM)
        i += 1
        item = work_item(i)


@gluon.jit
def _differentiate_keys(
    dk_ptr, sizes, scale, tiles, delta_rows, p_tiles, ring, p_ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_QUERIES: gl.constexpr,
):  # fmt: skip
    """Compute dS and dk of every tile, from the weights that the other warpgroup hands over."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_QUERIES, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)
    n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    kv_full, kv_free, q_full, q_free, do_full, do_free = ring
    p_full, p_free = p_ring
    no_scores = gl.zeros([KEYS, BLOCK_QUERIES], gl.float32, S_LAYOUT)
    no_sum = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
    slot, phase, p_slot, p_phase = 0, 0, 0, 0
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        dk = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
        first = first_block_of(tile * KEYS, CAUSAL, BLOCK_QUERIES)
        mbarrier.wait(kv_full, i & 1)
        for _member in range(HEADS_PER_KV):
            for _block in range(first, gl.cdiv(n_queries, BLOCK_QUERIES)):
                mbarrier.wait(do_full.index(slot), phase)
                dp = start_scores(v_tiles, 0, do_tiles, slot * PARTS, no_scores, True)
                dp = warpgroup_mma_wait(0, deps=[dp])
                dp -= delta_rows.index(slot).load(S_LAYOUT)
                mbarrier.wait(p_full.index(p_slot), p_phase)
                ds = p_tiles.index(p_slot).load(S_LAYOUT) * dp
                mbarrier.arrive(p_free.index(p_slot), count=1)
                p_slot, p_phase = next_slot(p_slot, p_phase, P_TILES)
                parts = in_parts(ds, A_LAYOUT)
                mbarrier.wait(q_full.index(slot), phase)
                of_block = start_product(parts, q_tiles, slot * PARTS, no_sum)
                of_block, _0, _1, _2 = warpgroup_mma_wait(0, deps=[of_block, parts[0], parts[1], parts[2]])
                # Not earlier: some warps' loads of δ could still be running when the slot is declared free.
                mbarrier.arrive(do_free.index(slot), count=1)
                mbarrier.arrive(q_free.index(slot), count=1)
                dk += of_block
                slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.arrive(kv_free, count=1)
        store_rows(dk_ptr, matrix, tile * KEYS, n_keys, dk * scale, HEAD_DIM)
        i += 1
        item = work_item(i)


@gluon.jit(do_not_specialize=SIZES)
def hopper_parts_key_value_kernel(
    q_parts_ptr, k_parts_ptr, v_parts_ptr, do_parts_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    n_matrices, n_queries, n_keys, n_tiles, heads_together, scale, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_QUERIES: gl.constexpr, REGISTERS: gl.constexpr,
):  # fmt: skip
    """Compute dk and dv of every tile of 64 keys from the queries that see it.

    Shapes: q, k, v and do are as `parts_kernel` writes them, (3, matrices, rows, head_dim) bf16; lse_log2 and delta as
    `delta_kernel` does; dk and dv are (n_matrices, n_keys, head_dim), where n_matrices = batch · key heads, each seen
    by HEADS_PER_KV consecutive query heads. dq_sum_ptr is None.
    """
    gdc_wait()
    q_tiles = tiles_of(STAGES * PARTS, BLOCK_QUERIES, WIDTH, gl.bfloat16)
    do_tiles = tiles_of(STAGES * PARTS, BLOCK_QUERIES, WIDTH, gl.bfloat16)
    k_tiles, v_tiles = tiles_of(PARTS, KEYS, WIDTH, gl.bfloat16), tiles_of(PARTS, KEYS, WIDTH, gl.bfloat16)
    p_tiles = tiles_of(P_TILES, KEYS, BLOCK_QUERIES, gl.float32)
    lse_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_QUERIES], PLAIN_LAYOUT)
    delta_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, BLOCK_QUERIES], PLAIN_LAYOUT)
    kv_full, kv_free = barriers(1, 1).index(0), barriers(1, GROUPS).index(0)
    q_full, q_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    do_full, do_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    fence_async_shared()
    sizes = (n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles, v_tiles, do_tiles)
    ring = (kv_full, kv_free, q_full, q_free, do_full, do_free)
    p_ring = (barriers(P_TILES, 1), barriers(P_TILES, 1))
    gl.warp_specialize(
        [
            (_differentiate_values, (dv_ptr, sizes, scale_log2, tiles, lse_rows, p_tiles, ring, p_ring, CAUSAL,
                                     HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_QUERIES)),
            (_differentiate_keys, (dk_ptr, sizes, scale, tiles, delta_rows, p_tiles, ring, p_ring, CAUSAL,
                                   HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_QUERIES)),
            (_load_keys, (k_parts_ptr, v_parts_ptr, sizes, k_tiles, v_tiles, kv_full, kv_free, HEAD_DIM, WIDTH)),
            (_load_queries, (q_parts_ptr, lse_log2_ptr, sizes, q_tiles, lse_rows, q_full, q_free, CAUSAL, HEADS_PER_KV,
                             HEAD_DIM, WIDTH, BLOCK_QUERIES)),
            (_load_queries, (do_parts_ptr, delta_ptr, sizes, do_tiles, delta_rows, do_full, do_free, CAUSAL,
                             HEADS_PER_KV, HEAD_DIM, WIDTH, BLOCK_QUERIES)),
        ],
        [4, 1, 1, 1], [REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip
