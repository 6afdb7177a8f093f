"""Forward pass for Hopper at head_dim up to 64: programs of one warpgroup, several per SM.

Each program loads for itself. While one waits for its products, or begins or ends a tile, the others compute; short
sequences gain most from this.
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
    ROWS,
    SIZES,
    as_block,
    barriers,
    blocks_of,
    dense_matrices_at,
    masked,
    matrices_at,
    matrix_and_tile,
    next_slot,
    tile_after,
    tiles_of,
    work_item,
)
from pipeline.attention.triton.gluon.softmax import first_weights, more_weights, rescaled, sums_and_lse

# Blocks of keys are processed last to first. A pair is a block of keys and the values of the block processed before it,
# which are multiplied at the same time: a tile with n blocks has pairs 0 to n. Two are in shared memory at a time.
PAIRS = gl.constexpr(2)


@gluon.jit
def _tile_of(item, sizes, HEADS_PER_KV: gl.constexpr, CAUSAL: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Return the position of an item's queries, the position of its keys, and how many blocks of keys it attends to.

    Queries: the matrix and the first row. Keys: batch element, head, and the row after the last block. Past the last
    item, return the positions of item 0 and no blocks.
    """
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together = sizes
    exists = item < n_tiles * n_matrices
    matrix, rank = matrix_and_tile(gl.where(exists, item, 0), n_tiles, n_matrices, heads_together)
    first_query = tile_after(rank, n_tiles, CAUSAL) * ROWS
    # Without a mask all tiles have equally many blocks. If LLVM knew, it would keep more in registers and be slower.
    query_end = first_query + ROWS if CAUSAL else first_query + ROWS + n_keys
    blocks = blocks_of(query_end, n_keys, True, BLOCK_KEYS)
    kv_heads, kv_matrix = heads // HEADS_PER_KV, matrix // HEADS_PER_KV
    keys_at = (kv_matrix // kv_heads, kv_matrix % kv_heads, blocks * BLOCK_KEYS)
    return (matrix, first_query), keys_at, gl.where(exists, blocks, 0)


@gluon.jit
def _load_pair(kv, keys_at, pair, full, k_tile, v_tile, exists, BLOCK_KEYS: gl.constexpr):
    """Start loading a tile's pair of this number; Triton puts a barrier before, so all warps are done with its slot.

    The values of pair 0 and the keys of the last pair are loaded but not used; rows outside the matrix read as 0.
    """
    k, v = kv
    batch, head, end = keys_at
    row = end - pair * BLOCK_KEYS
    mbarrier.expect(full, k.block_type.nbytes + v.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(k, [batch, head, row - BLOCK_KEYS, 0], full, as_block(k_tile), pred=exists)
    tma.async_copy_global_to_shared(v, [batch, head, row, 0], full, as_block(v_tile), pred=exists)


@gluon.jit
def _load_next_but_one(
    kv, pair, keys_at, blocks, keys_after_at, blocks_after, full, k_tile, v_tile, BLOCK_KEYS: gl.constexpr
):  # fmt: skip
    """Start loading pair number `pair` + 2, which may belong to the next tile, into the slot of number `pair`."""
    is_of_next = pair + PAIRS > blocks
    batch, head, end = keys_at
    batch_after, head_after, end_after = keys_after_at
    at = (gl.where(is_of_next, batch_after, batch), gl.where(is_of_next, head_after, head),
          gl.where(is_of_next, end_after, end))  # fmt: skip
    pair_after = gl.where(is_of_next, pair + PAIRS - 1 - blocks, pair + PAIRS)
    exists = (pair + PAIRS <= blocks) | (blocks_after > 0)
    _load_pair(kv, at, pair_after, full, k_tile, v_tile, exists, BLOCK_KEYS)


@gluon.jit
def _load_queries(descriptor, at, heads, exists, full, tile):
    """Start loading a tile of queries."""
    matrix, first_query = at
    mbarrier.expect(full, descriptor.block_type.nbytes, pred=exists)
    tma.async_copy_global_to_shared(
        descriptor, [matrix // heads, matrix % heads, first_query, 0], full, as_block(tile), pred=exists
    )


@gluon.jit(do_not_specialize=SIZES)
def hopper_narrow_forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    heads, n_matrices, n_queries, n_keys, n_tiles, heads_together, scale_log2,
    CAUSAL: gl.constexpr, HEADS_PER_KV: gl.constexpr, HEAD_DIM: gl.constexpr, WIDTH: gl.constexpr,
    BLOCK_KEYS: gl.constexpr,
):  # fmt: skip
    """Attend from every tile of 64 queries to its keys; shapes as for `hopper_forward_kernel`."""
    gdc_wait()
    gl.static_assert(BLOCK_KEYS % ROWS == 0)  # else a query may see none of the last block's keys
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_KEYS, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)  # weights stay in registers
    S_ROW: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    O_ROW: gl.constexpr = gl.SliceLayout(1, O_LAYOUT)
    DTYPE: gl.constexpr = q_ptr.dtype.element_ty
    q_tiles = tiles_of(2, ROWS, WIDTH, DTYPE)  # alternating; a tile's output leaves through its queries' buffer
    k_tiles, v_tiles = tiles_of(PAIRS, BLOCK_KEYS, WIDTH, DTYPE), tiles_of(PAIRS, BLOCK_KEYS, WIDTH, DTYPE)
    q_full, full = barriers(2, 1), barriers(PAIRS, 1)
    fence_async_shared()
    sizes = (heads, n_matrices, n_queries, n_keys, n_tiles, heads_together)
    no_scores = gl.zeros([ROWS, BLOCK_KEYS], gl.float32, S_LAYOUT)
    queries_at, keys_at, blocks = _tile_of(work_item(0), sizes, HEADS_PER_KV, CAUSAL, BLOCK_KEYS)
    # Each load starts as soon as its descriptors exist, so that it runs while the next ones are made.
    q = matrices_at(q_ptr, n_matrices, heads, n_queries, (stride_qb, stride_qh, stride_q), HEAD_DIM, ROWS, WIDTH)
    _load_queries(q, queries_at, heads, blocks > 0, q_full.index(0), q_tiles.index(0))
    kv_heads, kv_matrices = heads // HEADS_PER_KV, n_matrices // HEADS_PER_KV
    k_strides, v_strides = (stride_kb, stride_kh, stride_k), (stride_vb, stride_vh, stride_v)
    k = matrices_at(k_ptr, kv_matrices, kv_heads, n_keys, k_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    v = matrices_at(v_ptr, kv_matrices, kv_heads, n_keys, v_strides, HEAD_DIM, BLOCK_KEYS, WIDTH)
    kv = (k, v)
    for first in gl.static_range(PAIRS):
        _load_pair(
            kv, keys_at, first, full.index(first), k_tiles.index(first), v_tiles.index(first), blocks > 0, BLOCK_KEYS
        )
    o_matrices = dense_matrices_at(o_ptr, n_matrices, n_queries, HEAD_DIM, ROWS, WIDTH)
    slot, phase = 0, 0
    mbarrier.wait(q_full.index(0), 0, pred=blocks > 0)
    mbarrier.wait(full.index(0), 0, pred=blocks > 0)
    s = warpgroup_mma(q_tiles.index(0), k_tiles.index(0).permute((1, 0)), no_scores, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    i = 0
    while blocks > 0:
        matrix, first_query = queries_at
        queries_after_at, keys_after_at, blocks_after = _tile_of(
            work_item(i + 1), sizes, HEADS_PER_KV, CAUSAL, BLOCK_KEYS
        )
        _load_next_but_one(
            kv, 0, keys_at, blocks, keys_after_at, blocks_after, full.index(slot), k_tiles.index(slot),
            v_tiles.index(slot), BLOCK_KEYS,
        )  # fmt: skip
        # The last block first: only it needs a mask, and every query sees its first key, so no row is all -∞.
        s = masked(s, float("-inf"), blocks - 1, first_query, n_keys, CAUSAL)
        weights, maximum, total = first_weights(s, scale_log2, DTYPE)
        weights = gl.convert_layout(weights, P_LAYOUT)
        o = gl.zeros([ROWS, WIDTH], gl.float32, O_LAYOUT)
        tma.store_wait(0)  # until the previous tile's output has been read
        turn_after = (i + 1) & 1
        _load_queries(q, queries_after_at, heads, blocks_after > 0, q_full.index(turn_after), q_tiles.index(turn_after))
        q_tile = q_tiles.index(i & 1)
        slot, phase = next_slot(slot, phase, PAIRS)
        for pair in range(1, blocks):
            mbarrier.wait(full.index(slot), phase)
            k_tile, v_tile = k_tiles.index(slot), v_tiles.index(slot)
            s_coming = warpgroup_mma(q_tile, k_tile.permute((1, 0)), no_scores, use_acc=False, is_async=True)
            o_coming = warpgroup_mma(weights, v_tile, o, is_async=True)
            s = warpgroup_mma_wait(1, deps=[s_coming])
            weights_coming, maximum, total, rescale = more_weights(s, maximum, total, scale_log2, DTYPE)
            o, weights, weights_coming = warpgroup_mma_wait(0, deps=[o_coming, weights, weights_coming])
            _load_next_but_one(
                kv, pair, keys_at, blocks, keys_after_at, blocks_after, full.index(slot), k_tile, v_tile, BLOCK_KEYS
            )
            o = rescaled(o, rescale)
            weights = gl.convert_layout(weights_coming, P_LAYOUT)
            slot, phase = next_slot(slot, phase, PAIRS)
        mbarrier.wait(full.index(slot), phase)
        last_slot = slot
        o_coming = warpgroup_mma(weights, v_tiles.index(slot), o, is_async=True)
        # Compute the next tile's first scores while this one's output leaves; after the last tile, they are not used.
        slot, phase = next_slot(slot, phase, PAIRS)
        mbarrier.wait(q_full.index(turn_after), ((i + 1) >> 1) & 1, pred=blocks_after > 0)
        mbarrier.wait(full.index(slot), phase, pred=blocks_after > 0)
        s_coming = warpgroup_mma(
            q_tiles.index(turn_after), k_tiles.index(slot).permute((1, 0)), no_scores, use_acc=False, is_async=True
        )
        queries = first_query + gl.arange(0, ROWS, S_ROW)
        sums, lse_log2 = sums_and_lse(total, maximum, S_ROW)
        gl.store(lse_ptr + matrix.to(gl.int64) * n_queries + queries, lse_log2 * LN_2, mask=queries < n_queries)
        o, weights = warpgroup_mma_wait(1, deps=[o_coming, weights])
        _load_pair(
            kv, keys_after_at, 1, full.index(last_slot), k_tiles.index(last_slot), v_tiles.index(last_slot),
            blocks_after > 0, BLOCK_KEYS,
        )  # fmt: skip
        q_tile.store((o * (1.0 / gl.convert_layout(sums, O_ROW))[:, None]).to(DTYPE))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_matrices, [0, matrix, first_query, 0], as_block(q_tile))
        s = warpgroup_mma_wait(0, deps=[s_coming])
        queries_at, keys_at, blocks = queries_after_at, keys_after_at, blocks_after
        i += 1
    tma.store_wait(0)
