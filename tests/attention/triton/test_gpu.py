from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pipeline.attention.functions import why_not
from pipeline.attention.triton import forward_plan, gpu, kernel_sets
from pipeline.attention.triton.gpu import INTERPRETER, Gpu
from pipeline.attention.triton.problem import problem_of
from tools.tuning.every_gpu import GPUS

V100 = Gpu("Tesla V100-SXM2-16GB", "nvidia", (7, 0), 80, 96 * 1024)
REFUSAL = (
    "Tesla V100-SXM2-16GB has compute capability 7.0, the Triton attention needs 8.0: "
    "use torch.nn.functional.scaled_dot_product_attention"
)


def test_gpus_before_8_0_are_refused_and_only_9_0_and_10_0_have_descriptors():
    refused = [bool(replace(V100, capability=capability).why_refused) for capability in ((7, 0), (7, 5), (8, 0))]
    assert refused == [True, True, False]
    assert not any(given.why_refused for given in (*GPUS.values(), INTERPRETER))
    assert {name for name, given in GPUS.items() if given.has_descriptors} == {"sm_90", "sm_100"}


def test_every_refusal_names_the_gpu_the_requirement_and_an_alternative(monkeypatch):
    q = torch.empty(1, 1, 8, 16)
    monkeypatch.setattr(gpu, "_gpu_of", lambda _device: V100)
    for ask in (
        lambda: forward_plan.forward_plan.__wrapped__(problem_of(q, q, q)),
        lambda: kernel_sets.kernels_of(*[SimpleNamespace(is_cuda=True, device=torch.device("cuda", 0))] * 3),
    ):
        with pytest.raises(ValueError, match="V100") as refused:
            ask()
        assert str(refused.value) == REFUSAL
    assert why_not("flash", torch.device("cuda", 0)) == REFUSAL
    assert why_not("flash", torch.device("cpu")) == "flash attention needs a CUDA GPU"
    assert why_not("sdpa", torch.device("cuda", 0)) is None


@pytest.fixture
def a10(monkeypatch):
    """Fake a fourth GPU, an A10, and make it current."""
    said = SimpleNamespace(name="NVIDIA A10", major=8, minor=6, multi_processor_count=72)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {torch.device("cuda", 3): said}.__getitem__)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(gpu, "shared_bytes_of", {3: 101376}.__getitem__)
    monkeypatch.setattr(gpu, "is_interpreted", lambda: False)
    gpu._gpu_of.cache_clear()
    yield Gpu("NVIDIA A10", "nvidia", (8, 6), 72, 101376)
    gpu._gpu_of.cache_clear()


@pytest.mark.parametrize("device", ["cuda:3", "cuda"])
def test_gpu_of_asks_torch_and_triton_and_defaults_to_the_current_gpu(a10, device):
    assert gpu.gpu_of(torch.device(device)) == a10
    assert why_not("flash", torch.device(device)) is None


def test_amd_gpus_are_recognised(a10, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert gpu.gpu_of(torch.device("cuda", 3)) == replace(a10, vendor="amd")


def test_a_cpu_is_refused_outside_the_interpreter(monkeypatch):
    monkeypatch.setattr(gpu, "is_interpreted", lambda: False)
    with pytest.raises(ValueError, match="inputs are on cpu: Triton's kernels need a GPU"):
        gpu._gpu_of.__wrapped__(torch.device("cpu"))
