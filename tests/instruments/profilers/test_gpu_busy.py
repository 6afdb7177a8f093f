import time
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch.autograd import DeviceType

from pipeline.instruments.profilers import gpu_busy
from pipeline.instruments.profilers.gpu_busy import (
    GpuBusy,
    gpu_work,
    profile_gpu_busy,
    steps_between_marks,
    summarise_work,
)
from pipeline.instruments.sampling.step_timing import StopRule, time_phases

MATMUL, ALL_REDUCE, MARK = "sm90_gemm", "ncclDevKernel_AllReduce_Sum", "void at::cuda::spin_kernel(long)"


def work(*events):
    return pd.DataFrame(events, columns=["name", "start_us", "duration_us"])


def test_work_that_overlaps_counts_once_and_every_launch_counts():
    found = summarise_work([work((MATMUL, 0, 3000), (MATMUL, 2000, 2000), (MATMUL, 6000, 1000))], [20.0])
    assert found == GpuBusy(busy_ms=5.0, launches=3, exposed_communication_ms=0.0, profiled_ms=20.0)


def test_a_collective_is_exposed_where_nothing_else_runs():
    found = summarise_work([work((MATMUL, 0, 3000), (ALL_REDUCE, 1000, 4000), (MATMUL, 4500, 1500))], [8.0])
    assert found.busy_ms == 6.0
    assert found.exposed_communication_ms == 1.5


def test_collectives_alone_are_all_exposed():
    assert summarise_work([work((ALL_REDUCE, 0, 4000))], [5.0]).exposed_communication_ms == 4.0


def test_one_slow_step_does_not_move_the_figures():
    steps = [work((MATMUL, 0, duration_us)) for duration_us in (1000, 9000, 1000)]
    assert summarise_work(steps, [2.0, 10.0, 2.0]) == GpuBusy(1.0, 1, 0.0, 2.0)


def test_marks_divide_the_work_into_steps_whatever_its_order():
    found = steps_between_marks(
        work((MATMUL, 50, 5), (MARK, 10, 1), (MATMUL, 0, 5), (MARK, 30, 1), (MATMUL, 20, 5), (MATMUL, 12, 5))
    )
    assert [list(step["start_us"]) for step in found] == [[12, 20], [50]]


def test_a_step_without_work_is_a_step():
    assert [len(step) for step in steps_between_marks(work((MARK, 0, 1), (MARK, 5, 1), (MATMUL, 9, 1)))] == [0, 1]


def test_the_columns_of_a_step_are_what_was_seen():
    assert GpuBusy(5.0, 7, 2.0, 11.0).columns() == {
        "gpu_busy_ms": 5.0,
        "launches": 7,
        "exposed_communication_ms": 2.0,
        "profiled_ms": 11.0,
    }


def event(name, start_ns, duration_ns, device_type=DeviceType.CUDA, annotation=False):
    return SimpleNamespace(
        name=lambda: name,
        start_ns=lambda: start_ns,
        duration_ns=lambda: duration_ns,
        device_type=lambda: device_type,
        is_user_annotation=lambda: annotation,
    )


def test_neither_calls_of_the_host_nor_named_ranges_are_work_and_times_keep_their_nanoseconds(monkeypatch):
    since_1970 = 1_790_000_000_000_000_000
    events = [
        event("Optimizer.step#AdamW.step", since_1970, 9000, annotation=True),
        event("cudaLaunchKernel", since_1970, 9000, device_type=DeviceType.CPU),
        event(MATMUL, since_1970 + 1001, 1003),
        event(MATMUL, since_1970, 500),
    ]
    monkeypatch.setattr(gpu_busy, "profiler_events", lambda _profiler: events)
    assert gpu_work(None).to_dict("list") == {
        "name": [MATMUL, MATMUL],
        "start_us": [1.001, 0.0],
        "duration_us": [1.003, 0.5],
    }


def test_a_cpu_has_no_gpu_that_could_be_busy():
    assert profile_gpu_busy(lambda: pytest.fail("was run"), torch.device("cpu")) is None


@pytest.mark.gpu
def test_busy_time_is_that_of_the_kernels_and_not_of_a_host_that_waits():
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
    assert busy.busy_ms == pytest.approx(wall_ms, rel=0.05)
    slow = profile_gpu_busy(slow_host, device)
    assert slow.busy_ms == pytest.approx(busy.busy_ms, rel=0.05)
    assert slow.profiled_ms - slow.busy_ms > 40


@pytest.mark.gpu
def test_the_kernels_of_a_replayed_graph_count_one_by_one():
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
    assert replayed.busy_ms == pytest.approx(eager.busy_ms, rel=0.1)
