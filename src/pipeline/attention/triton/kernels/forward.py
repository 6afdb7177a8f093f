"""The forward pass of FlashAttention-2 as Triton kernels: output and log-sum-exp.

One program takes a tile of queries and runs over the keys that they attend to, with an online softmax. Where there are
too few tiles to fill the GPU, the keys are cut into chunks, a program takes a tile of queries and a chunk of keys, and
a second kernel combines the chunks. Source: Dao 2023, FlashAttention-2, algorithm 1 and section 3.2.
"""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.band import is_seen, keys_seen
from pipeline.attention.triton.kernels.blocks import (
    columns,
    load_rows,
    matrix_at,
    product,
    rows_of,
    wait_for_kernel_before,
    within,
)

LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def row_max(tile):
    """Return the maximum of each row."""
    # In two steps: otherwise a thread compares its part of a row in one long chain of dependent operations.
    parts: tl.constexpr = tile.shape[1] // 16
    return tl.max(tl.max(tl.reshape(tile, [tile.shape[0], parts, 16]), 1), 1)


@triton.jit
def row_sum(tile):
    """Return the sum of each row."""
    parts: tl.constexpr = tile.shape[1] // 16
    return tl.sum(tl.sum(tl.reshape(tile, [tile.shape[0], parts, 16]), 1), 1)


@triton.jit
def _attend(
    accumulator, maximum, total, q, k_rows, v_rows, start, end, first_query, n_keys, band_start, band_end,
    stride_k, stride_v, scale_log2, HAS_START: tl.constexpr, HAS_END: tl.constexpr, MAY_HIDE_ALL: tl.constexpr,
    MASKED: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Run over the keys from start to end; return the unnormalised output, maximum and sum, in base 2."""
    for key in tl.range(start, end, BLOCK_KEYS):
        k = load_rows(k_rows, key, n_keys, stride_k, BLOCK_KEYS, HEAD_DIM, TMA, MASKED)
        scores = product(q, tl.trans(k), None, PRECISION)
        if MASKED:
            queries, keys = first_query + tl.arange(0, BLOCK_QUERIES), key + tl.arange(0, BLOCK_KEYS)
            seen = is_seen(queries[:, None], keys[None, :], n_keys, band_start, band_end, HAS_START, HAS_END)
            scores = tl.where(seen, scores, float("-inf"))
        # The scale is positive, so it can be applied in one multiply-add with the subtraction of the maximum.
        new_maximum = tl.maximum(maximum, row_max(scores) * scale_log2)
        subtracted = new_maximum
        if MASKED and MAY_HIDE_ALL:
            subtracted = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)  # the query has seen no key yet
        weights = tl.exp2(scores * scale_log2 - subtracted[:, None])
        rescale = tl.exp2(maximum - subtracted)
        total = total * rescale + row_sum(weights)
        accumulator = accumulator * rescale[:, None]
        v = load_rows(v_rows, key, n_keys, stride_v, BLOCK_KEYS, HEAD_DIM, TMA, MASKED)
        accumulator = product(weights.to(v.dtype), v, accumulator, PRECISION)
        maximum = new_maximum
    return accumulator, maximum, total


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    heads, heads_per_kv, n_queries, n_keys, band_start, band_end, chunk_keys, n_chunks, scale_log2,
    HAS_START: tl.constexpr, HAS_END: tl.constexpr, MAY_HIDE_ALL: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, CHUNKED: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend from one tile of queries to its keys, or if CHUNKED to one chunk of them.

    Shapes: o is (batch · heads, n_queries, head_dim), lse (batch · heads, n_queries); if CHUNKED, both have a leading
    n_chunks, are fp32, and are only written if the chunk holds a key that the tile attends to. heads_per_kv consecutive
    query heads share keys and values. MAY_HIDE_ALL: a query may see nothing of a block that another of its tile sees;
    if it sees nothing at all, its output is 0 and its LSE -∞.
    """
    wait_for_kernel_before()
    n_tiles = tl.cdiv(n_queries, BLOCK_QUERIES)
    chunk = 0
    program = tl.program_id(0)
    if CHUNKED:
        chunk = program % n_chunks
        program = program // n_chunks
    batch_head = program // n_tiles
    tile = program % n_tiles
    if HAS_END and not HAS_START:
        tile = n_tiles - 1 - tile  # the longest first, so that no long one is left when the others are done
    first_query = tile * BLOCK_QUERIES

    start, start_unmasked, end_unmasked, end = keys_seen(
        first_query, n_keys, band_start, band_end, HAS_START, HAS_END, BLOCK_QUERIES, BLOCK_KEYS
    )
    if CHUNKED:
        start = chunk * chunk_keys
        if start >= end:
            return
        end = tl.minimum(end, start + chunk_keys)
        start_unmasked = start
    if HAS_START:
        start_unmasked = tl.minimum(start_unmasked, end)
    if HAS_START or CHUNKED:
        end_unmasked = tl.maximum(start_unmasked, tl.minimum(end_unmasked, end))

    q_matrix = matrix_at(q_ptr, batch_head, heads, stride_qb, stride_qh)
    k_matrix = matrix_at(k_ptr, batch_head // heads_per_kv, heads // heads_per_kv, stride_kb, stride_kh)
    v_matrix = matrix_at(v_ptr, batch_head // heads_per_kv, heads // heads_per_kv, stride_vb, stride_vh)
    k_rows = rows_of(k_matrix, n_keys, stride_k, BLOCK_KEYS, HEAD_DIM, TMA)
    v_rows = rows_of(v_matrix, n_keys, stride_v, BLOCK_KEYS, HEAD_DIM, TMA)
    q = load_rows(q_matrix, first_query, n_queries, stride_q, BLOCK_QUERIES, HEAD_DIM, False, True)

    maximum = tl.full([BLOCK_QUERIES], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_QUERIES], tl.float32)
    accumulator = tl.zeros(q.shape, tl.float32)
    if HAS_START:
        accumulator, maximum, total = _attend(
            accumulator, maximum, total, q, k_rows, v_rows, start, start_unmasked, first_query, n_keys, band_start,
            band_end, stride_k, stride_v, scale_log2, HAS_START, HAS_END, MAY_HIDE_ALL, True, HEAD_DIM, BLOCK_QUERIES,
            BLOCK_KEYS, TMA, PRECISION,
        )  # fmt: skip
    accumulator, maximum, total = _attend(
        accumulator, maximum, total, q, k_rows, v_rows, start_unmasked, end_unmasked, first_query, n_keys, band_start,
        band_end, stride_k, stride_v, scale_log2, HAS_START, HAS_END, MAY_HIDE_ALL, False, HEAD_DIM, BLOCK_QUERIES,
        BLOCK_KEYS, TMA, PRECISION,
    )  # fmt: skip
    accumulator, maximum, total = _attend(
        accumulator, maximum, total, q, k_rows, v_rows, end_unmasked, end, first_query, n_keys, band_start, band_end,
        stride_k, stride_v, scale_log2, HAS_START, HAS_END, MAY_HIDE_ALL, True, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS,
        TMA, PRECISION,
    )  # fmt: skip

    row = (chunk * (tl.num_programs(0) // (n_tiles * n_chunks)) + batch_head).to(tl.int64) * n_queries + first_query
    queries = tl.arange(0, BLOCK_QUERIES)
    exists = first_query + queries < n_queries
    tl.store(lse_ptr + row + queries, (maximum + tl.log2(total)) * LN_2, mask=exists)
    if MAY_HIDE_ALL:
        total = tl.where(total == 0.0, 1.0, total)
    o_tile = o_ptr + row * HEAD_DIM + queries[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(o_tile, (accumulator / total[:, None]).to(o_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))
