"""Combine the results of chunks: a short grid is cut into chunks to have more programs than tiles.

The forward and dq kernels take the keys in chunks, the kernel for dk and dv the queries.
"""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import columns, wait_for_kernel_before, within
from pipeline.attention.triton.tiles import tile_width

ROWS_PER_PROGRAM = tl.constexpr(8)
# Load four chunks at once: loaded one by one, each is waited for, which takes longer than everything else here.
AT_ONCE = tl.constexpr(4)


@triton.jit
def _load_part(parts_ptr, row, written, HEAD_DIM: tl.constexpr):
    """Load rows of a chunk's part of the result; rows that were not written are 0."""
    return tl.load(parts_ptr + row[:, None] * HEAD_DIM + columns(HEAD_DIM), within(written, HEAD_DIM), other=0.0)


@triton.jit
def _load_chunk(chunk_o_ptr, chunk_lse_ptr, chunk, chunk_keys, rows, n_rows, end, HEAD_DIM: tl.constexpr):
    """Load rows of a chunk's LSE and output; rows that were not written are -∞ and 0."""
    row = chunk * n_rows + rows
    written = (rows < n_rows) & (chunk * chunk_keys < end)
    lse = tl.load(chunk_lse_ptr + row, mask=written, other=float("-inf"))
    return lse, _load_part(chunk_o_ptr, row, written, HEAD_DIM)


@triton.jit
def combine_kernel(
    chunk_o_ptr, chunk_lse_ptr, o_ptr, lse_ptr, n_rows, n_queries, n_keys, band_end, chunk_keys, n_chunks,
    HAS_END: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr,
):  # fmt: skip
    """Combine the chunks of keys: o = Σ exp(lse_c - lse) o_c, with exp(lse) = Σ exp(lse_c).

    Shapes: chunk_o is (n_chunks, rows, head_dim) and chunk_lse (n_chunks, rows) fp32, o (rows, head_dim), lse (rows),
    where rows = batch · heads · n_queries. BLOCK_QUERIES: the forward kernel's queries per tile.
    """
    wait_for_kernel_before()
    rows = tl.program_id(0).to(tl.int64) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)
    exists = rows < n_rows
    end = tl.zeros([ROWS_PER_PROGRAM], tl.int32) + n_keys
    if HAS_END:  # a chunk was written if it holds a key that any query of the row's tile attends to
        tile_end = ((rows % n_queries) // BLOCK_QUERIES + 1) * BLOCK_QUERIES - 1 + band_end
        end = tl.minimum(end, tile_end.to(tl.int32))
    maximum = tl.full([ROWS_PER_PROGRAM], float("-inf"), tl.float32)
    total = tl.zeros([ROWS_PER_PROGRAM], tl.float32)
    accumulator = tl.zeros([ROWS_PER_PROGRAM, tile_width(HEAD_DIM)], tl.float32)
    for chunk in range(0, n_chunks, AT_ONCE):
        lse_0, o_0 = _load_chunk(chunk_o_ptr, chunk_lse_ptr, chunk, chunk_keys, rows, n_rows, end, HEAD_DIM)
        lse_1, o_1 = _load_chunk(chunk_o_ptr, chunk_lse_ptr, chunk + 1, chunk_keys, rows, n_rows, end, HEAD_DIM)
        lse_2, o_2 = _load_chunk(chunk_o_ptr, chunk_lse_ptr, chunk + 2, chunk_keys, rows, n_rows, end, HEAD_DIM)
        lse_3, o_3 = _load_chunk(chunk_o_ptr, chunk_lse_ptr, chunk + 3, chunk_keys, rows, n_rows, end, HEAD_DIM)
        # The first chunk is always written, so the maximum is finite from then on. Rows past the end do not matter.
        new_maximum = tl.maximum(maximum, tl.maximum(tl.maximum(lse_0, lse_1), tl.maximum(lse_2, lse_3)))
        rescale = tl.exp(maximum - new_maximum)
        weight_0, weight_1 = tl.exp(lse_0 - new_maximum), tl.exp(lse_1 - new_maximum)
        weight_2, weight_3 = tl.exp(lse_2 - new_maximum), tl.exp(lse_3 - new_maximum)
        total = total * rescale + (weight_0 + weight_1) + (weight_2 + weight_3)
        accumulator = accumulator * rescale[:, None] + weight_0[:, None] * o_0 + weight_1[:, None] * o_1
        accumulator += weight_2[:, None] * o_2 + weight_3[:, None] * o_3
        maximum = new_maximum
    tl.store(lse_ptr + rows, maximum + tl.log(total), mask=exists)
    o_tile = o_ptr + rows[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(o_tile, (accumulator / total[:, None]).to(o_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))


@triton.jit
def sum_kernel(
    parts_ptr, sum_ptr, n_rows, part_rows, length, band_end, chunk_length, n_chunks,
    HAS_END: tl.constexpr, OF_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TILE: tl.constexpr,
):  # fmt: skip
    """Sum gradients over chunks: of keys (OF_KEYS, from chunks of queries) or of queries (from chunks of keys).

    Shapes: parts is (tensors, n_chunks, part_rows, head_dim) fp32, sum (tensors, part_rows, head_dim), where n_rows =
    tensors · part_rows and part_rows = matrices · length. BLOCK_TILE: keys or queries per tile; a chunk has written all
    of a tile or nothing.
    """
    wait_for_kernel_before()
    rows = tl.program_id(0).to(tl.int64) * ROWS_PER_PROGRAM + tl.arange(0, ROWS_PER_PROGRAM)
    exists = rows < n_rows
    total = tl.zeros([ROWS_PER_PROGRAM, tile_width(HEAD_DIM)], tl.float32)
    # The row's tile was written by the chunks from begin to end.
    begin, end = tl.zeros([ROWS_PER_PROGRAM], tl.int32), tl.zeros([ROWS_PER_PROGRAM], tl.int32) + n_chunks
    if HAS_END:
        first_of_tile = (rows % length // BLOCK_TILE * BLOCK_TILE).to(tl.int32)
        if OF_KEYS:
            begin = tl.maximum(0, first_of_tile - band_end + 1) // chunk_length
        else:
            end = tl.minimum(end, tl.cdiv(first_of_tile + BLOCK_TILE - 1 + band_end, chunk_length))
    begin, end = tl.where(exists, begin, n_chunks), tl.where(exists, end, 0)
    row = rows // part_rows * n_chunks * part_rows + rows % part_rows
    for chunk in range(0, n_chunks, AT_ONCE):
        part_0 = _load_part(parts_ptr, row, (begin <= chunk) & (chunk < end), HEAD_DIM)
        part_1 = _load_part(parts_ptr, row + part_rows, (begin <= chunk + 1) & (chunk + 1 < end), HEAD_DIM)
        part_2 = _load_part(parts_ptr, row + 2 * part_rows, (begin <= chunk + 2) & (chunk + 2 < end), HEAD_DIM)
        part_3 = _load_part(parts_ptr, row + 3 * part_rows, (begin <= chunk + 3) & (chunk + 3 < end), HEAD_DIM)
        total += (part_0 + part_1) + (part_2 + part_3)
        row += AT_ONCE * part_rows
    sum_tile = sum_ptr + rows[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(sum_tile, total.to(sum_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))
