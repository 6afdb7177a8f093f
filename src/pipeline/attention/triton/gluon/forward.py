"""Forward pass for Hopper: programs are persistent, one warp loads, and each warpgroup attends from 64 queries.

A warpgroup starts the scores of one block of keys together with the output product of the block before, and computes
weights from these scores while that product still runs. So the softmax overlaps with tensor-core work. Source: Shah et
al. 2024, FlashAttention-3.
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
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.gluon.pieces import (
    LN_2,
    LOADING_REGISTERS,
    ROWS,
    SIZES,
    as_block,
    barriers,
    blocks_of,
    dense_matrices_at,
    load,
    masked,
    matrices_at,
    matrix_and_tile,
    next_slot,
    tile_after,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.gluon.softmax import first_weights, more_weights, rescaled, sums_and_lse


@gluon.jit
def _load(
    q_ptr, k_ptr, v_ptr, strides, sizes, tiles, ring, CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr,
    HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Load queries, keys and values ahead of the warpgroups, the last keys first."""
    q_strides, k_strides, v_strides = strides
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    q = matrices_at(q_ptr, n_matrices, heads, n_queries, q_strides, HEAD_DIM, ROWS, WIDTH)
    kv_heads, kv_matrices = heads // HEADS_PER_KV, n_matrices // HEADS_PER_KV
    k = matrices_at(k_ptr, kv_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    v = matrices_at(v_ptr, kv_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    slot, phase = 0, 1
    i = 0
    item = work_item(i)
    while item < n_tiles * n_matrices:
        matrix, rank = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS * GROUPS
        for group in gl.static_range(GROUPS):
            mbarrier.wait(q_free.index(group), (i & 1) ^ 1)
            mbarrier.expect(q_full.index(group), q.block_type.nbytes)
            load(q, matrix, heads, first_query + group * ROWS, q_full.index(group), q_tiles.index(group))
        blocks = blocks_of(first_query + ROWS * GROUPS, n_keys, CAUSAL, BLOCK_KEYS)
        for block in range(blocks):
            key = (blocks - 1 - block) * BLOCK_KEYS
            mbarrier.wait(k_free.index(slot), phase)
            mbarrier.expect(k_full.index(slot), k.block_type.nbytes)
            load(k, matrix // HEADS_PER_KV, kv_heads, key, k_full.index(slot), k_tiles.index(slot))
            mbarrier.wait(v_free.index(slot), phase)
            mbarrier.expect(v_full.index(slot), v.block_type.nbytes)
            load(v, matrix // HEADS_PER_KV, kv_heads, key, v_full.index(slot), v_tiles.index(slot))
            slot, phase = next_slot(slot, phase, STAGES)
        i += 1
        item = work_item(i)


@gluon.constexpr_function
def _part_sizes(head_dim):
    """Return powers of two that add up to the columns to multiply: head_dim, rounded up to the K of a wgmma."""
    columns = (int(head_dim) + 15) // 16 * 16
    return [size for size in (256, 128, 64, 32, 16) if columns & size]


@gluon.constexpr_function
def _parts(head_dim):
    return len(_part_sizes(head_dim))


@gluon.constexpr_function
def _size(head_dim, part):
    return _part_sizes(head_dim)[int(part)]


@gluon.constexpr_function
def _first(head_dim, part):
    return sum(_part_sizes(head_dim)[: int(part)])


@gluon.jit
def _scores(q, k, HEAD_DIM: gl.constexpr, LAYOUT: gl.constexpr):
    """Start computing q · kᵀ, (64, keys), over head_dim columns, rounded up to 16; wider tiles hold zeros past them."""
    KEYS: gl.constexpr = k.shape[0]
    s = gl.zeros([ROWS, KEYS], gl.float32, LAYOUT)
    for part in gl.static_range(_parts(HEAD_DIM)):
        q_part = q.slice(_first(HEAD_DIM, part), _size(HEAD_DIM, part), 1)
        k_part = k.slice(_first(HEAD_DIM, part), _size(HEAD_DIM, part), 1)
        s = warpgroup_mma(q_part, k_part.permute((1, 0)), s, use_acc=part > 0, is_async=True)
    return s


@gluon.jit
def _attend(
    o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL: gl.constexpr, HEAD_DIM: gl.constexpr,
    WIDTH: gl.constexpr, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, O_IN_Q: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    """Attend from one warpgroup's queries in every tile."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)  # weights stay in registers
    S_ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROW: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = o_ptr.dtype.element_ty
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    q_tiles, k_tiles, v_tiles = tiles
    q_full, q_free, k_full, k_free, v_full, v_free = ring
    o_matrices = dense_matrices_at(o_ptr, n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    q, o_tile = q_tiles.index(GROUP), o_tiles.index(GROUP)
    slot, phase = 0, 0
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
            # Blocks that only other warpgroups attend to: release them unread.
            mbarrier.wait(k_full.index(slot), phase)
            mbarrier.arrive(k_free.index(slot), count=1)
            mbarrier.wait(v_full.index(slot), phase)
            mbarrier.arrive(v_free.index(slot), count=1)
            slot, phase = next_slot(slot, phase, STAGES)
        mbarrier.wait(q_full.index(GROUP), i & 1)
        if blocks == 0:
            mbarrier.arrive(q_free.index(GROUP), count=1)
        else:
            # The last block first: only it needs a mask, and every query sees its first key, so no row is all -∞.
            mbarrier.wait(k_full.index(slot), phase)
            s = warpgroup_mma_wait(0, deps=[_scores(q, k_tiles.index(slot), HEAD_DIM, S_LAYOUT)])
            mbarrier.arrive(k_free.index(slot), count=1)
            s = masked(s, float("-inf"), blocks - 1, first_query, n_keys, CAUSAL)
            weights, maximum, total = first_weights(s, scale_log2, DTYPE)
            weights = gl.convert_layout(weights, P_LAYOUT)
            o = gl.zeros([ROWS, WIDTH], gl.float32, O_LAYOUT)
            for _ in range(blocks - 1):
                slot_after, phase_after = next_slot(slot, phase, STAGES)
                mbarrier.wait(k_full.index(slot_after), phase_after)
                s_coming = _scores(q, k_tiles.index(slot_after), HEAD_DIM, S_LAYOUT)
                mbarrier.wait(v_full.index(slot), phase)
                o_coming = warpgroup_mma(weights, v_tiles.index(slot), o, is_async=True)
                s = warpgroup_mma_wait(1, deps=[s_coming])
                mbarrier.arrive(k_free.index(slot_after), count=1)
                weights_coming, maximum, total, rescale = more_weights(s, maximum, total, scale_log2, DTYPE)
                o, weights, weights_coming = warpgroup_mma_wait(0, deps=[o_coming, weights, weights_coming])
                mbarrier.arrive(v_free.index(slot), count=1)
                o = rescaled(o, rescale)
                weights = gl.convert_layout(weights_coming, P_LAYOUT)
                slot, phase = slot_after, phase_after
            if not O_IN_Q:
                mbarrier.arrive(q_free.index(GROUP), count=1)
            mbarrier.wait(v_full.index(slot), phase)
            o_coming = warpgroup_mma(weights, v_tiles.index(slot), o, is_async=True)
            o, weights = warpgroup_mma_wait(0, deps=[o_coming, weights])
            mbarrier.arrive(v_free.index(slot), count=1)
            slot, phase = next_slot(slot, phase, STAGES)
            queries = first_query + gl.arange(0, ROWS, S_ROW)
            sums, lse_log2 = sums_and_lse(total, maximum, S_ROW)
            gl.store(lse_ptr + matrix.to(gl.int64) * n_queries + queries, lse_log2 * LN_2, mask=queries < n_queries)
            if not O_IN_Q:
                tma.store_wait(0)  # until the previous tile's output has been read
            o_tile.store((o * (1.0 / gl.convert_layout(sums, O_ROW))[:, None]).to(DTYPE))
            fence_async_shared()
            tma.async_copy_shared_to_global(o_matrices, [0, matrix, first_query, 0], as_block(o_tile))
            if O_IN_Q:
                tma.store_wait(0)
                mbarrier.arrive(q_free.index(GROUP), count=1)
        i += 1
        item = work_item(i)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES)
def hopper_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr, GROUPS: gl.constexpr, REGISTERS: gl.constexpr,
    O_IN_Q: gl.constexpr,
):  # fmt: skip
    """Attend from every tile of GROUPS · 64 queries to its keys.

    Shapes: q, k and v are (batch, heads, rows, head_dim) by their strides; o is (matrices, n_queries, head_dim) and lse
    (matrices, n_queries), where matrices = batch · heads; HEADS_PER_KV consecutive heads share keys and values. GROUPS:
    how many warpgroups attend, 2 or 3, with REGISTERS per thread. O_IN_Q: the output leaves through the shared memory
    of its queries instead of a buffer of its own.
    """
    gdc_wait()
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles = tiles_of(GROUPS, ROWS, WIDTH, DTYPE)
    k_tiles = tiles_of(STAGES, BLOCK_KEYS, WIDTH, DTYPE)
    v_tiles = tiles_of(STAGES, BLOCK_KEYS, WIDTH, DTYPE)
    o_tiles = q_tiles if O_IN_Q else tiles_of(GROUPS, ROWS, WIDTH, DTYPE)
    q_full, q_free = barriers(GROUPS, 1), barriers(GROUPS, 1)
    k_full, k_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    v_full, v_free = barriers(STAGES, 1), barriers(STAGES, GROUPS)
    fence_async_shared()
    strides = (
        (stride_qb, stride_qh, stride_q), (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v),
    )  # fmt: skip
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    tiles = (q_tiles, k_tiles, v_tiles)
    ring = (q_full, q_free, k_full, k_free, v_full, v_free)
    # Each tuple spells out its constants: collected in a variable, they would become runtime values.
    if GROUPS == 2:
        gl.warp_specialize(
            [
                (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                           STAGES, GROUPS, O_IN_Q, gl.constexpr(0))),
                (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                           STAGES, GROUPS, O_IN_Q, gl.constexpr(1))),
                (_load, (q_ptr, k_ptr, v_ptr, strides, sizes, tiles, ring, CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH,
                         BLOCK_KEYS, STAGES, GROUPS)),
            ],
            [4, 1], [REGISTERS, LOADING_REGISTERS],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                           STAGES, GROUPS, O_IN_Q, gl.constexpr(0))),
                (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                           STAGES, GROUPS, O_IN_Q, gl.constexpr(1))),
                (_attend, (o_ptr, lse_ptr, sizes, scale_log2, tiles, o_tiles, ring, CAUSAL, HEAD_DIM, WIDTH, BLOCK_KEYS,
                           STAGES, GROUPS, O_IN_Q, gl.constexpr(2))),
                (_load, (q_ptr, k_ptr, v_ptr, strides, sizes, tiles, ring, CAUSAL, HEADS_PER_KV, HEAD_DIM, WIDTH,
                         BLOCK_KEYS, STAGES, GROUPS)),
            ],
            [4, 4, 1], [REGISTERS, REGISTERS, LOADING_REGISTERS],
        )  # fmt: skip
