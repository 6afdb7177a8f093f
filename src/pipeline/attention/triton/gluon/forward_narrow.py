"""The forward pass for Hopper up to head_dim 64: programs of one warpgroup, several on a multiprocessor.

Each loads for itself and overlaps its softmax with its products as `forward` does; and while one begins or ends a tile
the others compute, which short sequences gain most by.
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

from pipeline.attention.triton.gluon.forward import LN_2, ROWS, blocks_of, tile_after
from pipeline.attention.triton.gluon.pieces import (
    SIZES,
    as_block,
    barriers,
    dense_matrices_at,
    matrices_at,
    matrix_and_tile,
    next_slot,
    tiles_of,
    work_item,
)


@gluon.jit
def _tile_of(item, sizes, CAUSAL: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Return an item's matrix, its first query, and how many blocks of keys its queries attend to; none after the last.

    Past the last item all is as of item 0 but that there are no blocks.
    """
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    exists = item < n_tiles * n_matrices
    matrix, rank = matrix_and_tile(gl.where(exists, item, 0), n_tiles, n_matrices, heads_together)
    first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS
    return matrix, first_query, gl.where(exists, blocks_of(first_query + ROWS, n_keys, CAUSAL, BLOCK_KEYS), 0)


@gluon.jit
def _load_block(descriptor, matrix, heads, block, blocks, full, tile, BLOCK_KEYS: gl.constexpr):
    """Start to load a block of keys or values, counted from the last; none where there are no so many."""
    exists = block < blocks
    mbarrier.expect(full, descriptor.block_type.nbytes, pred=exists)
    row = (blocks - 1 - block) * BLOCK_KEYS
    tma.async_copy_global_to_shared(
        descriptor, [matrix // heads, matrix % heads, row, 0], full, as_block(tile), pred=exists
    )


@gluon.jit
def _load_first(
    descriptor, matrix, heads, blocks, full, tiles, slot, BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr
):  # fmt: skip
    """Start to load a tile's first blocks, as many as there is room for, from this slot on."""
    for block in gl.static_range(STAGES):
        _load_block(descriptor, matrix, heads, block, blocks, full.index(slot), tiles.index(slot), BLOCK_KEYS)
        slot = gl.where(slot == STAGES - 1, 0, slot + 1)


@gluon.jit
def _load_queries(descriptor, matrix, heads, first_query, blocks, full, tile):
    """Start to load a tile of queries; none where they attend to nothing."""
    mbarrier.expect(full, descriptor.block_type.nbytes, pred=blocks > 0)
    tma.async_copy_global_to_shared(
        descriptor, [matrix // heads, matrix % heads, first_query, 0], full, as_block(tile), pred=blocks > 0
    )


@gluon.jit(do_not_specialize=SIZES)
def hopper_narrow_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Attend from every tile of 64 queries to its keys; shapes as of `hopper_forward_kernel`."""
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)  # weights stay in registers
    S_ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROW: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tile = tiles_of(1, ROWS, WIDTH, DTYPE).index(0)
    k_tiles, v_tiles = tiles_of(STAGES, BLOCK_KEYS, WIDTH, DTYPE), tiles_of(STAGES, BLOCK_KEYS, WIDTH, DTYPE)
    q_full, k_full, v_full = barriers(1, 1).index(0), barriers(STAGES, 1), barriers(STAGES, 1)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    no_scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, S_LAYOUT)
    slot, phase = 0, 0
    i = 0
    matrix, first_query, blocks = _tile_of(work_item(i), sizes, CAUSAL, BLOCK_KEYS)
    kv_heads, kv_matrices, kv_matrix = heads // HEADS_PER_KV, n_matrices // HEADS_PER_KV, matrix // HEADS_PER_KV
    # What one descriptor describes is on its way while the next is made.
    q = matrices_at(q_ptr, n_matrices, heads, n_queries, (stride_qb, stride_qh, stride_q), HEAD_DIM, ROWS, WIDTH)
    _load_queries(q, matrix, heads, first_query, blocks, q_full, q_tile)
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    k = matrices_at(k_ptr, kv_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    _load_first(k, kv_matrix, kv_heads, blocks, k_full, k_tiles, slot, BLOCK_KEYS, STAGES)
    v = matrices_at(v_ptr, kv_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    _load_first(v, kv_matrix, kv_heads, blocks, v_full, v_tiles, slot, BLOCK_KEYS, STAGES)
    o_matrices = dense_matrices_at(o_ptr, n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    while blocks > 0:
        # The last keys first: only these need a mask, and each query sees the first of them.
        mbarrier.wait(q_full, i & 1)
        mbarrier.wait(k_full.index(slot), phase)
        s = warpgroup_mma(q_tile, k_tiles.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, deps=[s])
        _load_block(k, kv_matrix, kv_heads, STAGES, blocks, k_full.index(slot), k_tiles.index(slot), BLOCK_KEYS)
        keys = (blocks - 1) * BLOCK_KEYS + gl.arange(0, BLOCK_KEYS, gl.SliceLayout(0, S_LAYOUT))[None, :]
        visible = keys < n_keys
        if CAUSAL:
            visible &= keys <= (first_query + gl.arange(0, ROWS, S_ROW))[:, None]
        s = gl.where(visible, s, float("-inf"))
        maximum = gl.max(s, 1) * scale_log2
        p = gl.exp2(s * scale_log2 - maximum[:, None])
        total = gl.sum(p, 1)
        o = gl.zeros([ROWS, WIDTH], gl.float32, O_LAYOUT)
        weights = gl.convert_layout(p.to(DTYPE), P_LAYOUT)
        for block in range(1, blocks):
            slot_after, phase_after = next_slot(slot, phase, STAGES)
            mbarrier.wait(k_full.index(slot_after), phase_after)
            k_after = k_tiles.index(slot_after)
            s_coming = warpgroup_mma(q_tile, k_after.permute((1, 0)), no_scores, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(slot), phase)
            o_coming = warpgroup_mma(weights, v_tiles.index(slot), o, is_async=True)
            s = warpgroup_mma_wait(1, deps=[s_coming])
            _load_block(k, kv_matrix, kv_heads, block + STAGES, blocks, k_full.index(slot_after), k_after, BLOCK_KEYS)
            new_maximum = gl.maximum(maximum, gl.max(s, 1) * scale_log2)
            p = gl.exp2(s * scale_log2 - new_maximum[:, None])
            rescale = gl.exp2(maximum - new_maximum)
            total = total * rescale + gl.sum(p, 1)
            maximum = new_maximum
            # They are there. But waiting ends a basic block, and with p among what is waited for next, neither LLVM nor
            # ptxas moves the exponentials behind that.
            mbarrier.wait(v_full.index(slot), phase)
            o, weights, p = warpgroup_mma_wait(0, deps=[o_coming, weights, p])
            v_freed = v_tiles.index(slot)
            _load_block(v, kv_matrix, kv_heads, block - 1 + STAGES, blocks, v_full.index(slot), v_freed, BLOCK_KEYS)
            o = o * gl.convert_layout(rescale, O_ROW)[:, None]
            weights = gl.convert_layout(p.to(DTYPE), P_LAYOUT)
            slot, phase = slot_after, phase_after
        mbarrier.wait(v_full.index(slot), phase)
        o_coming = warpgroup_mma(weights, v_tiles.index(slot), o, is_async=True)
        # What the next tile begins with is loaded while this one ends.
        slot, phase = next_slot(slot, phase, STAGES)
        i += 1
        matrix_after, first_query_after, blocks_after = _tile_of(work_item(i), sizes, CAUSAL, BLOCK_KEYS)
        kv_matrix = matrix_after // HEADS_PER_KV
        _load_first(k, kv_matrix, kv_heads, blocks_after, k_full, k_tiles, slot, BLOCK_KEYS, STAGES)
        queries = first_query + gl.arange(0, ROWS, S_ROW)
        lse = (maximum + gl.log2(total)) * LN_2
        gl.store(lse_ptr + matrix.to(gl.int64) * n_queries + queries, lse, mask=queries < n_queries)
        o, weights = warpgroup_mma_wait(0, deps=[o_coming, weights])
        _load_first(v, kv_matrix, kv_heads, blocks_after, v_full, v_tiles, slot, BLOCK_KEYS, STAGES)
        q_tile.store((o * (1.0 / gl.convert_layout(total, O_ROW))[:, None]).to(DTYPE))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_matrices, [0, matrix, first_query, 0], as_block(q_tile))
        tma.store_wait(0)  # until it has been read
        matrix, first_query, blocks = matrix_after, first_query_after, blocks_after
        _load_queries(q, matrix, heads, first_query, blocks, q_full, q_tile)
