"""Split fp32 matrices into three bf16 ones that add up to them, for the products of `gluon.parts`."""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import columns, load_rows, matrix_at, wait_for_kernel_before, within

PARTS = tl.constexpr(3)
ROWS_PER_PROGRAM = tl.constexpr(64)


@triton.jit
def parts_kernel(
    x_ptr, parts_ptr, stride_batch, stride_head, stride, heads, n_matrices, n_rows,
    HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Write the parts of a strided (batch, heads, rows, head_dim) as (3, matrices, rows, head_dim)."""
    wait_for_kernel_before()
    blocks = tl.cdiv(n_rows, ROWS_PER_PROGRAM)
    matrix, row = tl.program_id(0) // blocks, tl.program_id(0) % blocks * ROWS_PER_PROGRAM
    x_matrix = matrix_at(x_ptr, matrix, heads, stride_batch, stride_head)
    x = load_rows(x_matrix, row, n_rows, stride, ROWS_PER_PROGRAM, HEAD_DIM, False, True)
    rows = row + tl.arange(0, ROWS_PER_PROGRAM)
    exists = within(rows < n_rows, HEAD_DIM)
    offsets = (matrix.to(tl.int64) * n_rows + rows)[:, None] * HEAD_DIM + columns(HEAD_DIM)
    numbers = tl.cast(n_matrices, tl.int64) * n_rows * HEAD_DIM  # tl.cast: if it is 1, n_matrices is no tensor
    for part in tl.static_range(PARTS):
        nearest = x.to(tl.bfloat16)
        tl.store(parts_ptr + part * numbers + offsets, nearest, mask=exists)
        x -= nearest.to(tl.float32)
