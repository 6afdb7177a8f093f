"""The results of chunks, put together: a short grid is cut into them, to have more programs than tiles.

The forward kernel and that of dq take the keys in chunks, the kernel of dk and dv the queries.
"""

import triton
import triton.language as tl

from pipeline.attention.flash_triton_blocks import columns, wait_for_kernel_before, within
from pipeline.attention.flash_triton_configs import tile_width

ROWS_PUT_TOGETHER = 16  # by a program


@triton.jit
def combine_kernel(
    chunk_o_ptr, chunk_lse_ptr, o_ptr, lse_ptr, n_rows, n_queries, n_keys, chunk_keys, n_chunks,
    CAUSAL: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_QUERIES: tl.constexpr, BLOCK_ROWS: tl.constexpr,
    OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Combine the chunks of keys: o = Σ exp(lse_c - lse) o_c, with exp(lse) = Σ exp(lse_c).

    Shapes: chunk_o is (n_chunks, rows, head_dim) and chunk_lse (n_chunks, rows) fp32, o (rows, head_dim), lse (rows),
    where rows are batch · heads · n_queries. BLOCK_QUERIES is the tile of the forward kernel.
    """
    wait_for_kernel_before(OVERLAPPED)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    exists = rows < n_rows
    end = tl.zeros([BLOCK_ROWS], tl.int32) + n_keys
    if CAUSAL:  # a chunk was written if it holds a key that any query of the row's tile attends to
        tile_end = ((rows % n_queries) // BLOCK_QUERIES + 1) * BLOCK_QUERIES
        end = tl.minimum(end, tile_end.to(tl.int32))
    maximum = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    accumulator = tl.zeros([BLOCK_ROWS, tile_width(HEAD_DIM)], tl.float32)
    row = rows
    for chunk in range(n_chunks):
        written = exists & (chunk * chunk_keys < end)
        lse = tl.load(chunk_lse_ptr + row, mask=written, other=float("-inf"))
        o_tile = chunk_o_ptr + row[:, None] * HEAD_DIM + columns(HEAD_DIM)
        o = tl.load(o_tile, mask=within(written, HEAD_DIM), other=0.0)
        new_maximum = tl.maximum(maximum, lse)
        # The first chunk is always written: from it on the maximum is finite. Rows beyond the end do not matter.
        rescale, weight = tl.exp(maximum - new_maximum), tl.exp(lse - new_maximum)
        total = total * rescale + weight
        accumulator = accumulator * rescale[:, None] + weight[:, None] * o
        maximum = new_maximum
        row += n_rows
    tl.store(lse_ptr + rows, maximum + tl.log(total), mask=exists)
    o_tile = o_ptr + rows[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(o_tile, (accumulator / total[:, None]).to(o_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))


@triton.jit
def sum_kernel(
    parts_ptr, sum_ptr, n_rows, part_rows, length, chunk_length, n_chunks,
    CAUSAL: tl.constexpr, OF_KEYS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TILE: tl.constexpr,
    BLOCK_ROWS: tl.constexpr, OVERLAPPED: tl.constexpr,
):  # fmt: skip
    """Sum gradients over chunks: of keys (OF_KEYS, from chunks of queries) or of queries (from chunks of keys).

    Shapes: parts is (tensors, n_chunks, part_rows, head_dim) fp32, sum (tensors, part_rows, head_dim), both of n_rows
    over all tensors; part_rows are matrices of `length`. BLOCK_TILE is the tile of keys or queries, which a chunk has
    written for as a whole or not at all.
    """
    wait_for_kernel_before(OVERLAPPED)
    rows = tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)
    exists = rows < n_rows
    first_of_tile = rows % length // BLOCK_TILE * BLOCK_TILE
    total = tl.zeros([BLOCK_ROWS, tile_width(HEAD_DIM)], tl.float32)
    row = rows // part_rows * n_chunks * part_rows + rows % part_rows
    for chunk in range(n_chunks):
        written = exists
        if CAUSAL:
            if OF_KEYS:
                written &= (chunk + 1) * chunk_length > first_of_tile
            else:
                written &= chunk * chunk_length < first_of_tile + BLOCK_TILE
        total += tl.load(parts_ptr + row[:, None] * HEAD_DIM + columns(HEAD_DIM), within(written, HEAD_DIM), other=0.0)
        row += part_rows
    sum_tile = sum_ptr + rows[:, None] * HEAD_DIM + columns(HEAD_DIM)
    tl.store(sum_tile, total.to(sum_ptr.dtype.element_ty), mask=within(exists, HEAD_DIM))
