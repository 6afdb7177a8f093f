"""dk and dv of FlashAttention-2 in Triton: a program takes a tile of keys and runs over the queries that see it.

With S = q kᵀ / √head_dim, P = exp(S - lse), dP = do vᵀ and δ = rowsum(o · do):

    dS = P · (dP - δ)     dv = Pᵀ do     dk = dSᵀ q / √head_dim     dq = dS k / √head_dim

It works on transposed tiles, Sᵀ = k qᵀ, because the products for dk and dv read these from registers. dq is either
summed here in fp32 (5 matrix products per tile, in no fixed order) or computed by `query_kernel` (7 products, bitwise
repeatable). Source: Dao 2023, FlashAttention-2, algorithm 2.
"""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.band import is_seen, queries_seeing
from pipeline.attention.triton.kernels.blocks import (
    columns,
    load_rows,
    matrix_at,
    product,
    row_of,
    rows_of,
    wait_for_kernel_before,
    within,
)
from pipeline.attention.triton.kernels.delta import load_delta, load_lse_log2, row_length


@triton.jit
def matrices(length, BLOCK: tl.constexpr, n_chunks):
    """Return how many (length, head_dim) matrices the grid covers, as an int64."""
    return tl.num_programs(0).to(tl.int64) // (tl.cdiv(length, BLOCK) * n_chunks)


@triton.jit
def _visit_queries(
    dk, dv, k, v, q_rows, do_rows, dq_rows, o, lse, delta, start, end, first_key, n_queries, n_keys,
    band_start, band_end, stride_q, stride_do, scale_log2, HAS_START: tl.constexpr, HAS_END: tl.constexpr,
    MASKED: tl.constexpr, MASK_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, ADD_DQ: tl.constexpr, TMA: tl.constexpr, TMA_REDUCE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Run over the queries from start to end; return dk, not yet scaled, and dv."""
    for query in tl.range(start, end, BLOCK_QUERIES):
        queries = query + tl.arange(0, BLOCK_QUERIES)
        q = load_rows(q_rows, query, n_queries, stride_q, BLOCK_QUERIES, HEAD_DIM, TMA, True)
        # In one sum, as in the forward pass: with scores rounded differently, weights of large ones do not sum to 1.
        scores = product(k, tl.trans(q), None, PRECISION)
        # Rows past the last query have q, do and δ of 0, so they add nothing, whatever their weights.
        lse_log2 = load_lse_log2(lse, delta, query, n_queries, BLOCK_QUERIES, TMA)
        weights = tl.exp2(scores * scale_log2 - lse_log2[None, :])
        if MASKED or MASK_KEYS:
            keys = first_key + tl.arange(0, BLOCK_KEYS)[:, None]
            seen = is_seen(
                queries[None, :], keys, n_keys, band_start, band_end, HAS_START and MASKED, HAS_END and MASKED
            )
            weights = tl.where(seen, weights, 0.0)
        do = load_rows(do_rows, query, n_queries, stride_do, BLOCK_QUERIES, HEAD_DIM, TMA, True)
        # Keep the weights as rounded for the product with do: there are not enough registers to keep them in fp32.
        weights = weights.to(do.dtype)
        dv = product(weights, do, dv, PRECISION)
        dweights = product(v, tl.trans(do), None, PRECISION, TWO_SUMS=True)
        tile_delta = load_delta(o, delta, do, query, n_queries, BLOCK_QUERIES, HEAD_DIM, TMA)
        dscores = (weights.to(tl.float32) * (dweights - tile_delta[None, :])).to(q.dtype)
        dk = product(dscores, q, dk, PRECISION)
        if ADD_DQ:
            dq = product(tl.trans(dscores), k, None, PRECISION)
            if TMA_REDUCE:
                dq_rows.atomic_add([query, 0], dq)
            else:
                pointers = dq_rows + queries.to(tl.int64)[:, None] * HEAD_DIM + columns(HEAD_DIM)
                # Relaxed: nothing else is ordered relative to these sums; the end of the kernel makes them visible.
                tl.atomic_add(pointers, dq, mask=within(queries < n_queries, HEAD_DIM), sem="relaxed")
    return dk, dv


@triton.jit
def key_value_program(
    program, begin, end, part_row,
    q_ptr, k_ptr, v_ptr, do_ptr, o_ptr, lse_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale, scale_log2,
    HAS_START: tl.constexpr, HAS_END: tl.constexpr, MASK_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, ADD_DQ: tl.constexpr, TMA: tl.constexpr,
    TMA_REDUCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys from queries begin to end, and write them to the rows from part_row on.

    They are summed over the query heads that share the keys, one after the other.
    """
    n_tiles = tl.cdiv(n_keys, BLOCK_KEYS)
    kv_matrix = program // n_tiles
    first_key = program % n_tiles * BLOCK_KEYS  # with a causal mask, the longest come first
    k_matrix = matrix_at(k_ptr, kv_matrix, heads // heads_per_kv, stride_kb, stride_kh)
    v_matrix = matrix_at(v_ptr, kv_matrix, heads // heads_per_kv, stride_vb, stride_vh)
    k = load_rows(k_matrix, first_key, n_keys, stride_k, BLOCK_KEYS, HEAD_DIM, False, True)
    v = load_rows(v_matrix, first_key, n_keys, stride_v, BLOCK_KEYS, HEAD_DIM, False, True)

    start, start_unmasked, end_unmasked, end_seeing = queries_seeing(
        first_key, n_queries, band_start, band_end, HAS_START, HAS_END, BLOCK_QUERIES, BLOCK_KEYS
    )
    start, start_unmasked = tl.maximum(begin, start), tl.maximum(begin, start_unmasked)
    if HAS_START:
        end = tl.minimum(end, end_seeing)
    dk = tl.zeros(k.shape, tl.float32)
    dv = tl.zeros(v.shape, tl.float32)
    for member in range(heads_per_kv):
        batch_head = kv_matrix * heads_per_kv + member
        q_matrix = matrix_at(q_ptr, batch_head, heads, stride_qb, stride_qh)
        do_matrix = matrix_at(do_ptr, batch_head, heads, stride_dob, stride_doh)
        q_rows = rows_of(q_matrix, n_queries, stride_q, BLOCK_QUERIES, HEAD_DIM, TMA)
        do_rows = rows_of(do_matrix, n_queries, stride_do, BLOCK_QUERIES, HEAD_DIM, TMA)
        row = batch_head.to(tl.int64) * n_queries
        if delta_ptr is None:
            o, lse, delta = o_ptr + row * HEAD_DIM, lse_ptr + row, None
        else:
            padded_row = batch_head.to(tl.int64) * row_length(n_queries)
            o, lse = o_ptr, row_of(lse_ptr + padded_row, n_queries, BLOCK_QUERIES, TMA)
            delta = row_of(delta_ptr + padded_row, n_queries, BLOCK_QUERIES, TMA)
        dq_rows = dq_sum_ptr
        if ADD_DQ:
            dq_rows = rows_of(dq_sum_ptr + row * HEAD_DIM, n_queries, HEAD_DIM, BLOCK_QUERIES, HEAD_DIM, TMA_REDUCE)
        first_unmasked, last_unmasked = start_unmasked, end
        if HAS_END:
            first_unmasked = tl.minimum(start_unmasked, end)
            dk, dv = _visit_queries(
                dk, dv, k, v, q_rows, do_rows, dq_rows, o, lse, delta, start, first_unmasked, first_key, n_queries,
                n_keys, band_start, band_end, stride_q, stride_do, scale_log2, HAS_START, HAS_END, True, MASK_KEYS,
                HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, ADD_DQ, TMA, TMA_REDUCE, PRECISION,
            )  # fmt: skip
        if HAS_START:
            last_unmasked = tl.maximum(first_unmasked, tl.minimum(end_unmasked, end))
        dk, dv = _visit_queries(
            dk, dv, k, v, q_rows, do_rows, dq_rows, o, lse, delta, first_unmasked, last_unmasked, first_key, n_queries,
            n_keys, band_start, band_end, stride_q, stride_do, scale_log2, HAS_START, HAS_END, False, MASK_KEYS,
            HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, ADD_DQ, TMA, TMA_REDUCE, PRECISION,
        )  # fmt: skip
        if HAS_START:
            dk, dv = _visit_queries(
                dk, dv, k, v, q_rows, do_rows, dq_rows, o, lse, delta, last_unmasked, end, first_key, n_queries,
                n_keys, band_start, band_end, stride_q, stride_do, scale_log2, HAS_START, HAS_END, True, MASK_KEYS,
                HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, ADD_DQ, TMA, TMA_REDUCE, PRECISION,
            )  # fmt: skip

    keys = first_key + tl.arange(0, BLOCK_KEYS)
    offsets = (part_row + kv_matrix.to(tl.int64) * n_keys + keys)[:, None] * HEAD_DIM + columns(HEAD_DIM)
    in_tile = within(keys < n_keys, HEAD_DIM)
    tl.store(dk_ptr + offsets, (dk * scale).to(dk_ptr.dtype.element_ty), mask=in_tile)
    tl.store(dv_ptr + offsets, dv.to(dv_ptr.dtype.element_ty), mask=in_tile)


@triton.jit
def key_value_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale, scale_log2,
    chunk_queries, n_chunks, HAS_START: tl.constexpr, HAS_END: tl.constexpr, MASK_KEYS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, CHUNKED: tl.constexpr,
    ADD_DQ: tl.constexpr, TMA: tl.constexpr, TMA_REDUCE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one tile of keys; if ADD_DQ, add its share of dq, not yet scaled, to dq_sum.

    Shapes: dk and dv are (batch · key heads, n_keys, head_dim), dq_sum (batch · heads, n_queries, head_dim) fp32. If
    CHUNKED, dk and dv are computed from one chunk of queries, have a leading n_chunks, are fp32, and are only written
    if the chunk holds a query that attends to the tile.
    MASK_KEYS: the last tile of keys is not full, and its missing keys must not reach dq.
    """
    wait_for_kernel_before()
    program, begin, end, part_row = tl.program_id(0), 0, n_queries, 0
    if CHUNKED:
        begin = program % n_chunks * chunk_queries
        end = tl.minimum(n_queries, begin + chunk_queries)
        part_row = (program % n_chunks).to(tl.int64) * (matrices(n_keys, BLOCK_KEYS, n_chunks) * n_keys)
        program = program // n_chunks
        first = 0
        if HAS_END:
            first = program % tl.cdiv(n_keys, BLOCK_KEYS) * BLOCK_KEYS - band_end + 1
        if begin + chunk_queries <= first:
            return
    key_value_program(
        program, begin, end, part_row, q_ptr, k_ptr, v_ptr, do_ptr, None, lse_log2_ptr, delta_ptr, dq_sum_ptr, dk_ptr,
        dv_ptr,
        stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
        stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale,
        scale_log2, HAS_START, HAS_END, MASK_KEYS, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, ADD_DQ, TMA, TMA_REDUCE,
        PRECISION,
    )  # fmt: skip
