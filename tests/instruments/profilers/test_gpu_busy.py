import time
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch.profiler import ProfilerActivity

from pipeline.instruments.profilers import gpu_busy
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy, steps_between_marks, summarise_work
from pipeline.instruments.sampling.step_timing import StopRule, time_phases

MATMUL, ALL_REDUCE, MARK = "sm90_gemm", "ncclDevKernel_AllReduce_Sum", "void at::cuda::spin_kernel(long)"


def work(*events):
    return pd.DataFrame(events, columns=["name", "start_us", "duration_us"])


@pytest.mark.parametrize(
    ("steps", "busy"),
    [
        # Overlaps count once, and every launch counts.
        ([[(MATMUL, 0, 3000), (MATMUL, 2000, 2000), (MATMUL, 6000, 1000)]], GpuBusy(5.0, 3, 0.0, 8.0)),
        # A collective is exposed while nothing else runs.
        ([[(MATMUL, 0, 3000), (ALL_REDUCE, 1000, 4000), (MATMUL, 4500, 1500)]], GpuBusy(6.0, 3, 1.5, 8.0)),
        ([[(ALL_REDUCE, 0, 4000)]], GpuBusy(4.0, 1, 4.0, 8.0)),
        # One slow step does not move the values.
        ([[(MATMUL, 0, duration_us)] for duration_us in (1000, 9000, 1000)], GpuBusy(1.0, 1, 0.0, 8.0)),
    ],
)
def test_busy_time_counts_all_work_and_exposed_time_collectives_that_run_alone(steps, busy):
    assert summarise_work([work(*events) for events in steps], [8.0] * len(steps)) == busy


def test_marks_split_work_in_any_order_into_steps_which_may_be_empty():
    events = [(MATMUL, start, 5) for start in (50, 0, 20, 12)] + [(MARK, start, 1) for start in (10, 30, 28)]
    assert [list(step["start_us"]) for step in steps_between_marks(work(*events))] == [[12, 20], [], [50]]


def test_profiling_creates_no_torch_event_objects(monkeypatch):
    """They take fifteen times as long as raw events, and steps of a large model have tens of thousands of events."""
    monkeypatch.setattr(gpu_busy, "keep_gpu_busy", lambda _cycles: None)
    monkeypatch.setattr(gpu_busy, "ProfilerActivity", SimpleNamespace(CUDA=ProfilerActivity.CPU))
    monkeypatch.setattr(torch.autograd.profiler, "EventList", lambda *_, **__: pytest.fail("makes objects"))
    profiled = []
    monkeypatch.setattr(gpu_busy, "work_of", lambda events, on_gpu: profiled.append(events) or work())
    gpu_busy.profile_work(lambda: torch.ones(4).add(1), torch.device("cpu"), steps=2)
    assert any(event.name() == "aten::add" for event in profiled[0])


def test_on_a_cpu_nothing_is_profiled():
    assert profile_gpu_busy(lambda: pytest.fail("was run"), torch.device("cpu")) is None


@pytest.mark.gpu
def test_busy_time_counts_kernels_and_not_a_waiting_host():
    device, x = torch.device("cuda"), torch.randn(4096, 4096, device="cuda")

    def products():
        for _ in range(20):
            x @ x

    def slow_host():
        products()
        torch.cuda.synchronize()
        time.sleep(0.05)

    rule = StopRule(min_samples=10, max_samples=10, rel_error=0.0, budget_s=60)
    wall_ms = sorted(time_phases({"products": products}, device, 3, rule).timings["products"].host_ms)[5]
    busy = profile_gpu_busy(products, device)
    assert busy.launches == 20
    assert busy.gpu_busy_ms == pytest.approx(wall_ms, rel=0.05)
    slow = profile_gpu_busy(slow_host, device)
    assert slow.gpu_busy_ms == pytest.approx(busy.gpu_busy_ms, rel=0.05)
    assert slow.profiled_ms - slow.gpu_busy_ms > 40


@pytest.mark.gpu
def test_kernels_of_a_replayed_graph_are_counted_one_by_one():
    x = torch.randn(2048, 2048, device="cuda")
    graph = torch.cuda.CUDAGraph()
    x @ x
    with torch.cuda.graph(graph):
        y = x @ x
        for _ in range(4):
            y = y @ x
    eager = profile_gpu_busy(lambda: [x @ x for _ in range(5)], torch.device("cuda"))
    replayed = profile_gpu_busy(graph.replay, torch.device("cuda"))
    assert replayed.launches == 5
    assert replayed.gpu_busy_ms == pytest.approx(eager.gpu_busy_ms, rel=0.1)
