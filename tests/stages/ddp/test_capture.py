from types import SimpleNamespace

import pandas as pd
import pytest
import torch

from pipeline.stages.ddp.capture import Lanes, lanes

CPU, CUDA = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA


def events(*intervals):
    return pd.DataFrame([(start, end - start) for start, end in intervals], columns=["start_us", "duration_us"])


def columns(computation, communication):
    return Lanes(events(*computation), events(*communication)).columns()


def test_communication_after_computation_is_not_hidden():
    found = columns([(0, 1000)], [(1000, 3000)])
    assert found["hidden_ms"] == 0
    assert found["hidden_pct"] == 0
    assert found["span_ms"] == 3


def test_the_hidden_share_is_what_both_have_in_common():
    found = columns([(0, 1000), (1500, 2000)], [(800, 1600)])
    assert found["computation_ms"] == 1.5
    assert found["communication_ms"] == 0.8
    assert found["hidden_ms"] == pytest.approx(0.3)
    assert found["hidden_pct"] == pytest.approx(100 * 0.3 / 0.8)


def test_events_of_a_kind_that_overlap_count_once():
    # Two kernels on two streams, two transfers on two channels.
    found = columns([(0, 600), (400, 1000)], [(500, 900), (500, 1500)])
    assert found["computation_ms"] == 1
    assert found["communication_ms"] == 1
    assert found["hidden_ms"] == 0.5


def test_a_lane_joins_what_a_picture_cannot_tell_apart():
    found = columns([(100, 200), (200.01, 300), (4000, 10_100)], [(5000, 6000)])
    assert found["computation_starts_us"] == [0, 3900]
    assert found["computation_ends_us"] == [200, 10_000]
    assert found["communication_starts_us"] == [4900]


def test_a_short_event_inside_a_long_one_does_not_end_the_lane():
    found = columns([(0, 1000), (100, 200), (900, 1100)], [(0, 1)])
    assert (found["computation_starts_us"], found["computation_ends_us"]) == ([0], [1100])


def test_a_step_without_communication_has_no_hidden_share():
    found = columns([(0, 1000)], [])
    assert found["communication_ms"] == 0
    assert found["hidden_pct"] is None
    assert found["communication_starts_us"] == []


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
    found = lanes([event("aten::mm", start_ns=START_NS + late_ns) for late_ns in (0, 1, 1001)], "cpu").computation
    assert list(found["start_us"]) == [0, 0.001, 1.001]
    assert list(found["duration_us"]) == [5, 5, 5]


def test_on_a_cpu_operators_compute_and_the_backend_communicates():
    names = ["aten::mm", "gloo:all_reduce", "c10d::allreduce_", "autograd::engine", "ProfilerStep#1"]
    found = lanes([event(name, is_user_annotation=name.startswith(("gloo", "Prof"))) for name in names], "cpu")
    assert list(found.computation.index) == [0]
    assert list(found.communication.index) == [1]


def test_on_a_gpu_kernels_are_told_apart_by_name_and_the_host_does_not_count():
    kernels = ["ampere_sgemm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "Memcpy DtoD (Device -> Device)"]
    found = lanes([event("aten::mm"), *(event(name, CUDA) for name in kernels)], "cuda")
    assert list(found.computation.index) == [0, 2]
    assert list(found.communication.index) == [1]


def test_a_range_projected_onto_the_gpu_is_no_work():
    ranges = [event(name, CUDA, is_user_annotation=True) for name in ("ProfilerStep#1", "nccl:all_reduce")]
    found = lanes([*ranges, event("ampere_sgemm", CUDA)], "cuda")
    assert (len(found.computation), len(found.communication)) == (1, 0)
