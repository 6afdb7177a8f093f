"""δ = rowsum(o · do) and the LSE: the numbers per query that the backward kernels need."""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import (
    columns,
    load_row,
    load_rows,
    matrix_at,
    wait_for_kernel_before,
    within,
)
from pipeline.attention.triton.kernels.parts import PARTS

LOG2_E = tl.constexpr(1.4426950408889634)
# Rows that `delta_kernel` writes begin at multiples of 16 bytes, so that blocks of them can be loaded through tensor
# descriptors: loaded by pointers, 64 numbers of which each thread needs 32 took an eighth of all instructions.
ROW_ALIGNMENT = tl.constexpr(4)
# Or each number is split into three bf16 parts, whose sum is about as exact as fp32, in a row of 16 bytes, the minimum
# of a copy. Then a product with ones subtracts it, instead of a load and a subtraction per element of a tile.
PARTS_ROW = tl.constexpr(8)
QUERIES_PER_PROGRAM = tl.constexpr(64)


@triton.jit
def row_length(n_queries):
    """Return the padded length of a row of δ in memory."""
    return tl.cdiv(n_queries, ROW_ALIGNMENT) * ROW_ALIGNMENT


@triton.jit
def delta_kernel(
    o_ptr, do_ptr, lse_ptr, delta_ptr, lse_out_ptr, dq_sum_ptr, stride_dob, stride_doh, stride_do, heads, n_queries,
    dq_rows, scale,
    HEAD_DIM: tl.constexpr, DQ_WIDTH: tl.constexpr, IN_PARTS: tl.constexpr,
):  # fmt: skip
    """Compute δ and the base-2 LSE, or if IN_PARTS -δ and -LSE / scale, and zeros to add dq to.

    Shapes: o is (batch · heads, n_queries, head_dim) and lse (batch · heads, n_queries); delta and lse_out are like lse
    in fp32, with rows padded to a multiple of ROW_ALIGNMENT, or if IN_PARTS in bf16, with PARTS_ROW numbers per query;
    dq_sum is (batch · heads, dq_rows, DQ_WIDTH), with dq_rows at least n_queries and DQ_WIDTH 0 if there is no dq_sum.
    """
    wait_for_kernel_before()
    n_tiles = tl.cdiv(dq_rows, QUERIES_PER_PROGRAM)
    batch_head, tile = tl.program_id(0) // n_tiles, tl.program_id(0) % n_tiles
    first_query = tile * QUERIES_PER_PROGRAM
    exists = first_query + tl.arange(0, QUERIES_PER_PROGRAM) < n_queries
    row = batch_head.to(tl.int64) * n_queries + first_query
    rows = row + tl.arange(0, QUERIES_PER_PROGRAM)
    do_matrix = matrix_at(do_ptr, batch_head, heads, stride_dob, stride_doh)
    do = load_rows(do_matrix, first_query, n_queries, stride_do, QUERIES_PER_PROGRAM, HEAD_DIM, False, True)
    tile_offsets = rows[:, None] * HEAD_DIM + columns(HEAD_DIM)
    in_tile = within(exists, HEAD_DIM)
    o = tl.load(o_ptr + tile_offsets, mask=in_tile, other=0.0)
    rows_here = first_query + tl.arange(0, QUERIES_PER_PROGRAM)
    padded_rows = batch_head.to(tl.int64) * row_length(n_queries) + rows_here
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    lse = tl.load(lse_ptr + rows, mask=exists, other=0.0)
    if IN_PARTS:
        _store_parts(delta_ptr, rows, -delta, exists)
        _store_parts(lse_out_ptr, rows, -lse / scale, exists)
    else:
        tl.store(delta_ptr + padded_rows, delta, mask=exists)
        tl.store(lse_out_ptr + padded_rows, lse * LOG2_E, mask=exists)
    if DQ_WIDTH > 0:
        dq_offsets = (batch_head.to(tl.int64) * dq_rows + rows_here)[:, None] * DQ_WIDTH + columns(DQ_WIDTH)
        zeros = tl.zeros(dq_offsets.shape, tl.float32)
        tl.store(dq_sum_ptr + dq_offsets, zeros, mask=within(rows_here < dq_rows, DQ_WIDTH))


@triton.jit
def _store_parts(pointer, rows, numbers, exists):
    """Store numbers as sums of bf16 parts, each the rounded remainder of those before."""
    column = tl.arange(0, PARTS_ROW)[None, :]
    found = tl.zeros([rows.shape[0], PARTS_ROW], tl.bfloat16)
    left = numbers
    for part in tl.static_range(PARTS):
        rounded = left.to(tl.bfloat16)
        found = tl.where(column == part, rounded[:, None], found)
        left -= rounded.to(tl.float32)
    tl.store(pointer + rows[:, None] * PARTS_ROW + column, found, mask=exists[:, None])


@triton.jit
def load_lse_log2(lse, delta, first_query, n_queries, BLOCK_QUERIES: tl.constexpr, TMA: tl.constexpr):
    """Load the base-2 LSE of some queries, converting it from base e if no δ was computed before."""
    found = load_row(lse, first_query, n_queries, BLOCK_QUERIES, TMA)
    if delta is None:
        found *= LOG2_E
    return found


@triton.jit
def load_delta(
    o_ptr, delta, do, first_query, n_queries, BLOCK_QUERIES: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr
):
    """Load the δ of some queries, or compute it if that was not done before."""
    if delta is None:
        o = load_rows(o_ptr, first_query, n_queries, HEAD_DIM, BLOCK_QUERIES, HEAD_DIM, False, True)
        return tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    else:
        return load_row(delta, first_query, n_queries, BLOCK_QUERIES, TMA)
