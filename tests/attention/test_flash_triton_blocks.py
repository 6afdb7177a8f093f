"""Blocks as the Triton kernels load them, in Triton's interpreter."""

import pytest
import torch
import triton
import triton.language as tl

from pipeline.attention.flash_triton_blocks import columns, load_rows

ROWS = HEAD_DIM = 16
STRIDE = 2**28  # the last of 16 rows begins beyond 2^31


@triton.jit
def copy_kernel(address, copy_ptr, stride, n_rows: tl.constexpr, head_dim: tl.constexpr):
    # By its address: the interpreter would copy the whole of a tensor.
    source = tl.cast(address, tl.pointer_type(tl.int8))
    block = load_rows(source, 0, n_rows, stride, n_rows, head_dim, False, True)
    tl.store(copy_ptr + tl.arange(0, n_rows)[:, None] * head_dim + columns(head_dim), block)


@pytest.mark.skipif(torch.cuda.is_available(), reason="reads the host's memory")
def test_the_rows_of_a_block_may_lie_more_than_two_to_the_31_elements_apart(tmp_path):
    # A file without contents takes room only for the pages that are written. An offset that overflows would reach
    # below the rows: there are zeros.
    below = 2**31
    size = below + (ROWS - 1) * STRIDE + HEAD_DIM
    memory = torch.from_file(str(tmp_path / "sparse"), shared=True, size=size, dtype=torch.int8)
    rows = memory[below:].as_strided((ROWS, HEAD_DIM), (STRIDE, 1))
    rows.copy_(torch.arange(1, ROWS + 1)[:, None].expand(-1, HEAD_DIM))
    copied = torch.zeros((ROWS, HEAD_DIM), dtype=torch.int8)
    copy_kernel[(1,)](rows.data_ptr(), copied, STRIDE, ROWS, HEAD_DIM)
    torch.testing.assert_close(copied, rows, rtol=0, atol=0)
