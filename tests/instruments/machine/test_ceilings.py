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


def test_a_product_counts_a_multiplication_and_an_addition():
    assert Ceiling("matmul", 1000, "bf16").tflops_per_s(time_ms=2.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("kind", "gb_per_s"), [("copy", 2.0), ("l2_copy", 2.0), ("reduction", 1.0), ("to_device", 1.0), ("launch", 0.0)]
)
def test_a_copy_within_a_memory_counts_twice(kind, gb_per_s):
    assert Ceiling(kind, 10**6).gb_per_s(time_ms=1.0) == pytest.approx(gb_per_s)


@pytest.mark.parametrize(
    ("ceiling", "lack"),
    [
        (Ceiling("matmul", 64, "fp32"), None),
        (Ceiling("matmul", 64, "bf16"), None),
        (Ceiling("matmul", 64, "fp8"), "fp8 needs a GPU"),
        (Ceiling("matmul", 64, "tf32"), "tf32 needs a GPU"),
        (Ceiling("l2_copy", KIB), "l2_copy needs a GPU"),
        (Ceiling("to_host", KIB), "to_host needs a GPU"),
        (Ceiling("launch", 4), "launch needs a GPU"),
    ],
)
def test_a_cpu_lacks_what_only_a_gpu_has(ceiling, lack):
    assert missing(ceiling, CPU) == lack


@pytest.mark.parametrize(
    ("dtype", "capability", "lack"),
    [("fp8", (8, 0), "fp8 needs a GPU of compute capability 8.9"), ("fp8", (9, 0), None), ("fp16", (7, 0), None)],
)
def test_an_older_gpu_lacks_what_came_later(monkeypatch, dtype, capability, lack):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: capability)
    assert missing(Ceiling("matmul", 64, dtype), CUDA) == lack


def test_one_gpu_has_no_peer(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert missing(Ceiling("to_peer", KIB), CUDA) == "to_peer needs two GPUs"


def test_what_is_missing_is_skipped_with_its_reason():
    with pytest.raises(Skipped, match="fp8 needs a GPU"):
        measure_ceiling(Ceiling("matmul", 64, "fp8"), CPU, THREE)


@pytest.mark.parametrize(
    "ceiling",
    [
        Ceiling("matmul", 64, "fp32"),
        Ceiling("matmul", 64, "bf16"),
        Ceiling("copy", MIB),
        Ceiling("reduction", MIB),
        Ceiling("operator", 4),
    ],
    ids=str,
)
def test_a_cpu_has_samples_of_each_ceiling_that_makes_sense(ceiling):
    taken = measure_ceiling(ceiling, CPU, THREE).taken[ceiling.kind]
    (samples_ms,) = taken.times_ms.values()
    assert len(samples_ms) == 3
    assert all(sample > 0 for sample in samples_ms)
    assert taken.out_of_memory is None


def test_an_operator_among_many_costs_its_share(monkeypatch):
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
        Ceiling("copy", 1024 * MIB),
        Ceiling("reduction", 1024 * MIB),
        Ceiling("l2_copy", 8 * MIB),
        Ceiling("to_device", 256 * MIB),
        Ceiling("to_host", 256 * MIB),
        Ceiling("to_peer", 256 * MIB),
        Ceiling("launch", 4),
        Ceiling("operator", 4),
    ],
    ids=str,
)
def test_a_gpu_has_figures_of_the_right_order(ceiling):
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
