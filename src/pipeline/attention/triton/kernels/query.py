"""dq of FlashAttention-2 in Triton: a program takes a tile of queries and runs over the keys that it sees.

Formulas and source are those of `key_value`.
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
from pipeline.attention.triton.kernels.delta import load_delta, load_lse_log2, row_length
from pipeline.attention.triton.kernels.key_value import matrices


@triton.jit
def _visit_keys(
    dq, q, do, lse_log2, delta, k_rows, v_rows, start, end, first_query, n_keys, band_start, band_end,
    stride_k, stride_v, scale_log2, HAS_START: tl.constexpr, HAS_END: tl.constexpr, MASKED: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run over the keys from start to end; return dq, not yet scaled."""
    for key in tl.range(start, end, BLOCK_KEYS):
        k = load_rows(k_rows, key, n_keys, stride_k, BLOCK_KEYS, HEAD_DIM, TMA, MASKED)
        v = load_rows(v_rows, key, n_keys, stride_v, BLOCK_KEYS, HEAD_DIM, TMA, MASKED)
        scores = product(q, tl.trans(k), None, PRECISION)
        weights = tl.exp2(scores * scale_log2 - lse_log2[:, None])
        if MASKED:
            queries, keys = first_query + tl.arange(0, BLOCK_QUERIES), key + tl.arange(0, BLOCK_KEYS)
            seen = is_seen(queries[:, None], keys[None, :], n_keys, band_start, band_end, HAS_START, HAS_END)
            weights = tl.where(seen, weights, 0.0)
        dweights = product(do, tl.trans(v), None, PRECISION, TWO_SUMS=True)
        dscores = weights * (dweights - delta[:, None])
        dq = product(dscores.to(k.dtype), k, dq, PRECISION)
    return dq


@triton.jit
def query_program(
    program, begin, end, part_row, q_ptr, k_ptr, v_ptr, do_ptr, o_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale, scale_log2,
    HAS_START: tl.constexpr, HAS_END: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq of one tile of queries from keys begin to end, and write it to the rows from part_row on."""
    n_tiles = tl.cdiv(n_queries, BLOCK_QUERIES)
    batch_head, tile = program // n_tiles, program % n_tiles
    if HAS_END and not HAS_START:
        tile = n_tiles - 1 - tile  # the longest first
    first_query = tile * BLOCK_QUERIES
    start, start_unmasked, end_unmasked, end_seen = keys_seen(
        first_query, n_keys, band_start, band_end, HAS_START, HAS_END, BLOCK_QUERIES, BLOCK_KEYS
    )
    start, end = tl.maximum(begin, start), tl.minimum(end, end_seen)
    start_unmasked = tl.maximum(start, tl.minimum(start_unmasked, end))
    end_unmasked = tl.maximum(start_unmasked, tl.minimum(end_unmasked, end))
    q_matrix = matrix_at(q_ptr, batch_head, heads, stride_qb, stride_qh)
    do_matrix = matrix_at(do_ptr, batch_head, heads, stride_dob, stride_doh)
    k_matrix = matrix_at(k_ptr, batch_head // heads_per_kv, heads // heads_per_kv, stride_kb, stride_kh)
    v_matrix = matrix_at(v_ptr, batch_head // heads_per_kv, heads // heads_per_kv, stride_vb, stride_vh)
    k_rows = rows_of(k_matrix, n_keys, stride_k, BLOCK_KEYS, HEAD_DIM, TMA)
    v_rows = rows_of(v_matrix, n_keys, stride_v, BLOCK_KEYS, HEAD_DIM, TMA)
    q = load_rows(q_matrix, first_query, n_queries, stride_q, BLOCK_QUERIES, HEAD_DIM, False, True)
    do = load_rows(do_matrix, first_query, n_queries, stride_do, BLOCK_QUERIES, HEAD_DIM, False, True)

    queries = first_query + tl.arange(0, BLOCK_QUERIES)
    exists = queries < n_queries
    row = batch_head.to(tl.int64) * n_queries
    if delta_ptr is None:
        o_ptr += row * HEAD_DIM
        lse_ptr += row
    else:
        padded_row = batch_head.to(tl.int64) * row_length(n_queries)
        lse_ptr += padded_row
        delta_ptr += padded_row
    lse_log2 = load_lse_log2(lse_ptr, delta_ptr, first_query, n_queries, BLOCK_QUERIES, False)
    delta = load_delta(o_ptr, delta_ptr, do, first_query, n_queries, BLOCK_QUERIES, HEAD_DIM, False)
    dq = tl.zeros(q.shape, tl.float32)
    if HAS_START:
        dq = _visit_keys(
            dq, q, do, lse_log2, delta, k_rows, v_rows, start, start_unmasked, first_query, n_keys, band_start,
            band_end, stride_k, stride_v, scale_log2, HAS_START, HAS_END, True, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS,
            TMA, PRECISION,
        )  # fmt: skip
    dq = _visit_keys(
        dq, q, do, lse_log2, delta, k_rows, v_rows, start_unmasked, end_unmasked, first_query, n_keys, band_start,
        band_end, stride_k, stride_v, scale_log2, HAS_START, HAS_END, False, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS,
        TMA, PRECISION,
    )  # fmt: skip
    dq = _visit_keys(
        dq, q, do, lse_log2, delta, k_rows, v_rows, end_unmasked, end, first_query, n_keys, band_start, band_end,
        stride_k, stride_v, scale_log2, HAS_START, HAS_END, True, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, TMA, PRECISION,
    )  # fmt: skip
    offsets = (part_row + row + queries)[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(dq_ptr + offsets, (dq * scale).to(dq_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))


@triton.jit
def query_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale, scale_log2,
    chunk_keys, n_chunks, HAS_START: tl.constexpr, HAS_END: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, CHUNKED: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq, of shape (batch · heads, n_queries, head_dim), of one tile of queries.

    If CHUNKED, dq is computed from one chunk of keys, has a leading n_chunks, is fp32, and is only written if the chunk
    holds a key that the tile attends to.
    """
    wait_for_kernel_before()
    program, begin, end, part_row = tl.program_id(0), 0, n_keys, 0
    if CHUNKED:
        begin = program % n_chunks * chunk_keys
        end = tl.minimum(n_keys, begin + chunk_keys)
        part_row = (program % n_chunks).to(tl.int64) * (matrices(n_queries, BLOCK_QUERIES, n_chunks) * n_queries)
        program = program // n_chunks
        reach = n_keys
        if HAS_END:
            n_tiles = tl.cdiv(n_queries, BLOCK_QUERIES)
            reach = (n_tiles - program % n_tiles) * BLOCK_QUERIES - 1 + band_end
        if begin >= reach:
            return
    query_program(
        program, begin, end, part_row, q_ptr, k_ptr, v_ptr, do_ptr, None, lse_log2_ptr, delta_ptr, dq_ptr,
        stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
        stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale,
        scale_log2, HAS_START, HAS_END, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, TMA, PRECISION,
    )  # fmt: skip
