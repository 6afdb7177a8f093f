from dataclasses import replace

import pytest
import torch

from pipeline.attention.triton import direct_launch
from pipeline.attention.triton.problem import problem_of
from tools.tuning.every_gpu import GPUS


@pytest.mark.parametrize("shape", [(128,), (1, 1, 128), (2, 3, 1, 16), (1, 1, 1, 8), (4, 1, 5, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_allocated_from_a_template_is_contiguous_and_has_its_shape(shape, dtype):
    found = torch.empty_like(direct_launch.like(shape, dtype, torch.device("cpu")))
    expected = torch.empty(shape, dtype=dtype)
    assert (found.shape, found.stride(), found.dtype) == (shape, expected.stride(), dtype)
    assert found.is_contiguous()
    assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


@pytest.mark.parametrize(("name", "products"), [("sm_86", ("tf32x3", "tf32")), ("gfx942", ("ieee", "ieee"))])
def test_fp32_is_three_tf32_products_or_one_but_native_on_amd(monkeypatch, name, products):
    monkeypatch.setattr(direct_launch, "gpu_of", lambda _device: GPUS[name])
    q = torch.empty(1, 8, 16)
    exact = replace(problem_of(q, q, q), one_tf32_product=False)
    assert tuple(map(direct_launch.precision, (exact, replace(exact, one_tf32_product=True)))) == products


@pytest.mark.parametrize(("name", "loads"), [("sm_86", False), ("sm_90", True), ("sm_120", False)])
def test_aligned_matrices_are_loaded_through_descriptors_if_the_gpu_uses_them(monkeypatch, name, loads):
    monkeypatch.setattr(direct_launch, "gpu_of", lambda _device: GPUS[name])
    assert direct_launch.tma_can_load(problem_of(*[torch.empty(1, 8, 16)] * 3).q) == loads
