import gc
import time

import pytest
import torch

from pipeline.instruments.sampling import step_timing
from pipeline.instruments.sampling.interleaving import Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler, latency_sampler
from pipeline.instruments.sampling.step_timing import StopRule, time_call_ms, time_phases
from pipeline.instruments.sampling.stopwatch import Stopwatch

CPU = torch.device("cpu")
TEN = StopRule(min_samples=10, max_samples=10, rel_error=0.0, budget_s=60)


def test_phases_run_in_turn_with_the_garbage_collector_off_and_uncounted_warm_up():
    calls, collects = [], []
    phases = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b") or collects.append(gc.isenabled())}
    sampling = time_phases(phases, CPU, warmup=3, rule=TEN)
    assert "".join(calls) == "ab" * 13
    assert list(sampling.timings["a"].by_clock()) == ["host"]
    assert len(sampling.timings["a"].host_ms) == 10
    assert collects == [True] * 3 + [False] * 10
    assert gc.isenabled()


def test_each_phase_has_its_own_time_and_without_warm_up_the_cold_call_counts(clock):
    cold = iter([0.25])
    phases = {"cold": lambda: clock.sleep(next(cold, 0.0)), "long": lambda: clock.sleep(0.125)}
    timings = time_phases(phases, CPU, warmup=0, rule=TEN).timings
    assert timings["cold"].host_ms == [250.0, *[0.0] * 9]
    assert timings["long"].host_ms == [125.0] * 10


def test_a_phase_is_timed_with_a_synchronize_on_both_sides(monkeypatch):
    log = []
    monkeypatch.setattr(step_timing, "synchronize", lambda _device: log.append("wait"))
    monkeypatch.setattr(step_timing, "perf_counter", lambda: log.append("clock") or 0.0)
    time_call_ms(lambda: log.append("call"), CPU)
    assert log == ["wait", "clock", "call", "clock", "wait", "clock"]


def test_a_clock_that_a_timed_call_replaces_is_not_read(monkeypatch):
    def call(_argument=None):
        monkeypatch.setattr(time, "perf_counter", lambda: pytest.fail("read"))
        monkeypatch.setattr(torch.cuda, "Event", None)

    stopwatch, work = Stopwatch(), Work(call)
    with stopwatch.measuring():
        interleave({"call": work}, kernel_sampler(CPU), {"call": TEN}, warmup=1)
        latency_sampler(CPU)(work)
        time_phases({"step": call}, CPU, warmup=1, rule=TEN)
    assert stopwatch.seconds()["measuring"] < 60


STEADY, NOISY = [[10.0] * 9 + [10.01]], [[10.0, 20.0] * 5]


@pytest.mark.parametrize(
    ("samples_ms", "elapsed_s", "ends"),
    [
        ([[10.0] * 9], 99.0, False),  # too few, whatever the budget
        (STEADY, 1.0, True),  # the median is known well enough
        (STEADY, 0.9, False),  # but for too short a time
        (NOISY, 1.0, False),
        (NOISY, 5.0, True),  # the budget is spent
        (NOISY + STEADY, 1.0, False),  # every phase must be known
        ([NOISY[0] * 10], 0.1, True),  # max_samples
    ],
)
def test_sampling_ends_when_the_median_is_known_well_enough_or_at_its_limits(samples_ms, elapsed_s, ends):
    rule = StopRule(min_samples=10, max_samples=100, rel_error=0.005, budget_s=5.0, least_s=1.0)
    assert rule.ends(samples_ms, elapsed_s) is ends


@pytest.mark.gpu
def test_cuda_events_and_host_clock_agree_on_a_long_kernel():
    device = torch.device("cuda")
    a = torch.randn(8192, 8192, device=device)
    sampling = time_phases({"matmul": lambda: a @ a}, device, warmup=3, rule=TEN)
    timings = sampling.timings["matmul"]
    assert sorted(timings.cuda_events_ms)[5] == pytest.approx(sorted(timings.host_ms)[5], rel=0.05)
