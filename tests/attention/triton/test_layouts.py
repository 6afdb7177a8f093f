import pytest
import torch

from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, copies_of, dense, layouts_of, ready, strides_read

from ..layouts import LAYOUTS, OFFSETS, laid_out

X = torch.arange(2 * 3 * 5 * 8.0).view(2, 3, 5, 8)


def is_aligned(tensor):
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("x", [X, X[:, 0]], ids=["4-D", "3-D"])
def test_plans_get_the_strides_of_what_is_read_and_only_misfits_are_copied(x, layout, offset, dtype):
    given = laid_out(x.to(dtype), layout, offset)
    layouts = layouts_of(X, given)
    copies = copies_of(layouts)
    read = given if copies is None else ready(copies, X, given)[1]
    assert is_aligned(read)
    assert read.stride()[-1] == 1
    assert strides_read(given.shape, layouts[1]) == read.stride()
    assert torch.equal(read, x.to(dtype))
    assert (read is given) == (is_aligned(given) and given.stride()[-1] == 1)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_dense_copies_only_tensors_that_are_not_contiguous_and_aligned(layout, offset):
    given = laid_out(X, layout, offset)
    original, found = dense(X, given)
    assert original is X
    assert is_aligned(found)
    assert found.is_contiguous()
    assert torch.equal(found, X)
    assert (found is given) == (given.is_contiguous() and is_aligned(given))
