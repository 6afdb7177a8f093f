from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from pipeline.instruments.profilers.lanes import Lanes, lanes

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def events(*intervals):
    return pd.DataFrame([(start, end - start) for start, end in intervals], columns=["start_us", "duration_us"])


def columns(computation, communication):
    return Lanes(events(*computation), events(*communication)).columns()


def test_communication_after_computation_is_not_hidden():
    row = columns([(0, 1000)], [(1000, 3000)])
    assert row["hidden_ms"] == 0
    assert row["span_ms"] == 3


def test_hidden_is_what_both_have_in_common():
    row = columns([(0, 1000), (1500, 2000)], [(800, 1600)])
    assert row["computation_ms"] == 1.5
    assert row["communication_ms"] == 0.8
    assert row["hidden_ms"] == pytest.approx(0.3)


def test_events_of_a_kind_that_overlap_count_once():
    # Two kernels on two streams, two transfers on two channels.
    row = columns([(0, 600), (400, 1000)], [(500, 900), (500, 1500)])
    assert row["computation_ms"] == 1
    assert row["communication_ms"] == 1
    assert row["hidden_ms"] == 0.5


def parts(*lengths_and_shares):
    """Make a lane by pieces: how many parts long, how busy."""
    return [share for length, share in lengths_and_shares for _ in range(length)]


def test_a_lane_tells_how_busy_each_part_of_the_step_was():
    # 1000 us a hundred parts: busy, half busy by many short events, idle, one event over the edge of two parts.
    short = [(start, start + 1) for start in range(1100, 2100, 2)]
    row = columns([(100, 1100), *short, (3095, 3105)], [(4000, 4100)])
    assert row["computation_busy_pct"] == parts((100, 100), (100, 50), (99, 0), (1, 50), (1, 50), (99, 0))
    assert row["communication_busy_pct"] == parts((390, 0), (10, 100))


def test_events_that_overlap_make_a_lane_no_busier():
    row = columns([(0, 300), (100, 200), (250, 400)], [(400, 800), (400, 800)])
    assert row["computation_busy_pct"] == parts((200, 100), (200, 0))
    assert row["communication_busy_pct"] == parts((200, 0), (200, 100))


def test_a_step_without_communication_hides_nothing():
    row = columns([(0, 1000)], [])
    assert row["communication_ms"] == 0
    assert row["hidden_ms"] == 0
    assert set(row["communication_busy_pct"]) == {0}


def test_collectives_are_told_apart_by_name_and_exposed_where_nothing_computes():
    names = ["ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16"]
    communication = events((500, 1500), (1500, 2000)).assign(name=names)
    row = Lanes(events((0, 1000), (1900, 2000)), communication).columns_by_collective(
        {"gather": "all_?gather", "scatter": "reduce_?scatter"}
    )
    assert (row["span_ms"], row["computation_ms"]) == (2, 1.1)
    assert (row["gather_ms"], row["gather_exposed_ms"]) == (1, 0.5)
    assert (row["scatter_ms"], row["scatter_exposed_ms"]) == (0.5, 0.4)
    assert row["scatter_busy_pct"] == parts((300, 0), (100, 100))


START_NS = 1_800_000_000_000_000_000


def event(name, device_type=CPU, is_user_annotation=False, start_ns=START_NS):
    """An event as Kineto gives it."""
    values = {
        "name": name,
        "start_ns": start_ns,
        "duration_ns": 5000,
        "device_type": device_type,
        "is_user_annotation": is_user_annotation,
    }
    return SimpleNamespace(**{key: lambda value=value: value for key, value in values.items()})


def test_times_are_exact_to_the_nanosecond():
    computation = lanes([event("aten::mm", start_ns=START_NS + late_ns) for late_ns in (0, 1, 1001)], "cpu").computation
    assert list(computation["start_us"]) == [0, 0.001, 1.001]
    assert list(computation["duration_us"]) == [5, 5, 5]


def test_on_a_cpu_operators_compute_and_the_backend_communicates():
    names = ["aten::mm", "gloo:all_reduce", "c10d::allreduce_", "autograd::engine", "ProfilerStep#1"]
    work = lanes([event(name, is_user_annotation=name.startswith(("gloo", "Prof"))) for name in names], "cpu")
    assert list(work.computation.index) == [0]
    assert list(work.communication.index) == [1]


def test_on_a_gpu_kernels_are_told_apart_by_name_and_the_host_does_not_count():
    kernels = ["ampere_sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoD (Device -> Device)"]
    work = lanes([event("aten::mm"), *(event(name, CUDA) for name in kernels)], "cuda")
    assert list(work.computation.index) == [0, 2]
    assert list(work.communication.index) == [1]


def test_a_range_projected_onto_the_gpu_is_no_work():
    ranges = [event(name, CUDA, is_user_annotation=True) for name in ("ProfilerStep#1", "nccl:all_reduce")]
    work = lanes([*ranges, event("ampere_sgemm", CUDA)], "cuda")
    assert (len(work.computation), len(work.communication)) == (1, 0)
