import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.attention.triton import direct_launch
from pipeline.attention.triton.problem import problem_of
from tools.tuning.every_gpu import GPUS

FOLDER = Path(direct_launch.__file__).parent
KERNELS = [
    pytest.param(node, id=node.name)
    for folder in ("kernels", "gluon")
    for path in sorted((FOLDER / folder).rglob("*.py"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel") and node.decorator_list
]


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


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_first_waits_for_the_one_before(kernel):
    first = kernel.body[1]  # after the docstring
    assert ast.unparse(first) in ("wait_for_kernel_before()", "gdc_wait()")


def test_kernels_were_found():
    assert {"delta_kernel", "hopper_backward_kernel", "hopper_parts_query_kernel"} <= {found.id for found in KERNELS}


@pytest.mark.parametrize(
    ("name", "overlapped"), [("sm_86", False), ("sm_90", True), ("sm_120", True), ("gfx942", False)]
)
def test_kernels_are_launched_while_the_one_before_ends_if_the_gpu_can(monkeypatch, name, overlapped):
    monkeypatch.setattr(direct_launch, "gpu_of", lambda _device: GPUS[name])
    assert ("launch_pdl" in direct_launch.launch_options(direct_launch.ELEMENTWISE)) == overlapped
