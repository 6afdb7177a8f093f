"""What the Triton attention's launches are made of."""

import pytest
import torch

from pipeline.attention.triton import direct_launch


@pytest.mark.parametrize("shape", [(128,), (1, 1, 128), (2, 3, 1, 16), (1, 1, 1, 8), (4, 1, 5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_allocated_like_one_number_is_a_contiguous_tensor_of_the_shape(shape, dtype):
    found = torch.empty_like(direct_launch.like(shape, dtype, torch.device("cpu")))
    expected = torch.empty(shape, dtype=dtype)
    assert (found.shape, found.stride(), found.dtype) == (shape, expected.stride(), dtype)
    assert found.is_contiguous()
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()
