"""The last step for dq if it was summed in fp32: scale it and round it to its dtype."""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import wait_for_kernel_before

ELEMENTS_SCALED = tl.constexpr(4096)  # per program


@triton.jit
def scaled_kernel(sum_ptr, scaled_ptr, n_elements, scale):
    """Multiply numbers by a scale and round them to the output's dtype; input and output may be the same tensor."""
    wait_for_kernel_before()
    index = tl.program_id(0).to(tl.int64) * ELEMENTS_SCALED + tl.arange(0, ELEMENTS_SCALED)
    exists = index < n_elements
    found = tl.load(sum_ptr + index, mask=exists) * scale
    tl.store(scaled_ptr + index, found.to(scaled_ptr.dtype.element_ty), mask=exists)


ROWS_UNPACKED, COLUMNS_UNPACKED = tl.constexpr(64), tl.constexpr(64)  # per program


@triton.jit
def unpacked_kernel(sum_ptr, scaled_ptr, n_queries, dq_rows, scale, HEAD_DIM: tl.constexpr, DQ_WIDTH: tl.constexpr):
    """Multiply the Hopper backward kernel's sums of dq by a scale, round them, and put them in order.

    Shapes: sum is (batch · heads, dq_rows / 64, DQ_WIDTH / 8, 512), every 64 rows and 8 columns laid out by
    `gluon.moving.by_thread`; scaled is (batch · heads, n_queries, head_dim).
    """
    wait_for_kernel_before()
    parts: tl.constexpr = (HEAD_DIM + COLUMNS_UNPACKED - 1) // COLUMNS_UNPACKED
    part = tl.program_id(0) % parts
    block = tl.program_id(0) // parts  # of 64 rows, over all heads
    first_column = part * COLUMNS_UNPACKED
    eights = first_column // 8 + tl.arange(0, COLUMNS_UNPACKED // 8)
    at = block.to(tl.int64) * (ROWS_UNPACKED * DQ_WIDTH) + eights[:, None] * 512 + tl.arange(0, 512)[None, :]
    found = tl.load(sum_ptr + at, mask=(eights < DQ_WIDTH // 8)[:, None], other=0.0) * scale
    # groups of 8 columns, warps, rows of a half, pairs of columns, halves of a warp's 16 rows, columns of a pair
    found = tl.permute(tl.reshape(found, (8, 4, 8, 4, 2, 2)), (1, 4, 2, 0, 3, 5))
    found = tl.reshape(found, (ROWS_UNPACKED, COLUMNS_UNPACKED))
    blocks = dq_rows // ROWS_UNPACKED
    row = block % blocks * ROWS_UNPACKED + tl.arange(0, ROWS_UNPACKED)
    column = first_column + tl.arange(0, COLUMNS_UNPACKED)
    offsets = ((block // blocks).to(tl.int64) * n_queries + row)[:, None] * HEAD_DIM + column[None, :]
    exists = (row < n_queries)[:, None] & (column < HEAD_DIM)[None, :]
    tl.store(scaled_ptr + offsets, found.to(scaled_ptr.dtype.element_ty), mask=exists)
