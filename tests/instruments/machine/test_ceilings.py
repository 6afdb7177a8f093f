from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine import ceilings
from pipeline.instruments.machine.ceilings import Ceiling, measure_ceiling, missing
from pipeline.instruments.sampling.step_timing import StopRule

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
THREE = StopRule(min_samples=3, max_samples=3, rel_error=0.0, budget_s=60)
KIB, MIB = 2**10, 2**20


GB_PER_S = {"copy": 2.0, "l2_copy": 2.0, "reduction": 1.0, "to_device": 1.0, "launch": 0.0}


def test_a_copy_within_a_memory_counts_twice_and_a_multiply_add_is_two_flops():
    assert {kind: Ceiling(kind, 10**6).gb_per_s(time_ms=1.0) for kind in GB_PER_S} == pytest.approx(GB_PER_S)
    assert Ceiling("matmul", 1000, "bf16").tflops_per_s(time_ms=2.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ceiling", "capability", "lack"),
    [
        *((Ceiling("matmul", 64, dtype), None, None) for dtype in ("fp32", "bf16")),
        *((Ceiling("matmul", 64, dtype), None, f"{dtype} needs a GPU") for dtype in ("fp8", "tf32", "fp16")),
        *((Ceiling(kind, KIB), None, f"{kind} needs a GPU") for kind in ("l2_copy", "to_host", "launch")),
        (Ceiling("matmul", 64, "fp8"), (8, 0), "fp8 needs a GPU of compute capability 8.9"),
        (Ceiling("matmul", 64, "fp8"), (9, 0), None),
        (Ceiling("matmul", 64, "fp16"), (7, 0), None),
        (Ceiling("to_peer", KIB), (9, 0), "to_peer needs two GPUs"),
    ],
)
def test_ceilings_that_a_device_does_not_support_are_skipped(monkeypatch, ceiling, capability, lack):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    device = CUDA if capability else CPU
    assert missing(ceiling, device) == lack
    if lack:
        with pytest.raises(Skipped, match=lack):
            measure_ceiling(ceiling, device, THREE)


def test_the_operator_sample_is_the_time_per_call(monkeypatch):
    moments = iter([1.0, 3.0])
    monkeypatch.setattr(ceilings, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    calls = []
    work = ceilings.Work(lambda _argument: calls.append(1))
    sample = ceilings._operator_sampler(CPU)(work)
    assert sample.times_ms == {"host": 2000.0 / len(calls)}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "ceiling",
    [
        *(Ceiling("matmul", 4096, dtype) for dtype in ceilings.DTYPES),
        *(Ceiling(kind, 1024 * MIB) for kind in ("copy", "reduction")),
        *(Ceiling(kind, 256 * MIB) for kind in ("to_device", "to_host", "to_peer")),
        *(Ceiling("l2_copy", 8 * MIB), Ceiling("launch", 4), Ceiling("operator", 4)),
    ],
    ids=str,
)
def test_gpu_ceilings_have_the_right_order_of_magnitude(ceiling):
    try:
        taken = measure_ceiling(ceiling, CUDA, THREE).taken[ceiling.kind]
    except Skipped as skipped:
        pytest.skip(str(skipped))
    median_ms = sorted(next(iter(taken.times_ms.values())))[1]
    if ceiling.flops:
        assert 5 < ceiling.tflops_per_s(median_ms) < 10_000
    elif ceiling.moved_bytes:
        assert 1 < ceiling.gb_per_s(median_ms) < 50_000
    else:
        assert 0.001 < median_ms < 0.2
