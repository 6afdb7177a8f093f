import pytest
import torch
import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import columns, load_rows, product, tf32_parts

ROWS = HEAD_DIM = 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
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


@triton.jit
def parts_kernel(x_ptr, high_ptr, low_ptr, length: tl.constexpr):
    index = tl.arange(0, length)
    high, low = tf32_parts(tl.load(x_ptr + index))
    tl.store(high_ptr + index, high)
    tl.store(low_ptr + index, low)


def test_the_parts_of_a_number_are_the_nearest_tf32_number_and_all_that_is_left():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4096, generator=generator) * 10.0 ** torch.randint(-20, 20, (4096,), generator=generator)
    x[:4] = torch.tensor([0.0, 1 + 2**-11, -1 - 2**-11, 1 + 2**-10])  # exact, two ties, exact
    x = x.to(DEVICE)
    high, low = torch.empty_like(x), torch.empty_like(x)
    parts_kernel[(1,)](x, high, low, len(x))
    assert (high.view(torch.int32) % 2**13 == 0).all()  # TF32 has 10 bits of the 23 behind the binary point
    assert (high.double() + low.double() == x.double()).all()
    assert (low.abs() <= 2**-11 * high.abs()).all()
    assert (high[1:3].abs() == 1 + 2**-10).all()


@triton.jit
def product_kernel(a_ptr, b_ptr, c_ptr, out_ptr, size: tl.constexpr, two_sums: tl.constexpr):
    index = tl.arange(0, size)[:, None] * size + tl.arange(0, size)
    c = None if c_ptr is None else tl.load(c_ptr + index)
    tl.store(out_ptr + index, product(tl.load(a_ptr + index), tl.load(b_ptr + index), c, "tf32x3", two_sums))


@pytest.mark.parametrize("two_sums", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("size", [32, 64])  # by mma.sync and by wgmma
def test_three_tf32_products_are_as_exact_as_one_of_fp32(size, adds, two_sums):
    generator = torch.Generator().manual_seed(0)
    a, b, c = (torch.randn(size, size, generator=generator).to(DEVICE) for _ in range(3))
    exact = a.double() @ b.double() + (c.double() if adds else 0)
    found = torch.full_like(a, torch.nan)
    product_kernel[(1,)](a, b, c if adds else None, found, size, two_sums)
    assert ((found.double() - exact).norm() / exact.norm()).item() < 1e-6
