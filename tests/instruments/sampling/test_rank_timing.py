import gc
import itertools
import math
import time
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling import rank_timing, step_timing
from pipeline.instruments.sampling.rank_timing import max_over_ranks, time_steps_over_ranks
from pipeline.parallel.processes.starting import run_ranks

LATE_S, STEPS = 0.2, 3


def watching(context):
    """Measure all that the tests need in a single start of the ranks; rank 1 takes longer in one phase."""
    pending, within = [], []

    def start():
        pending.append(dist.all_reduce(torch.ones(8), async_op=True))

    def finish():
        pending.pop().wait()
        sleep(0.25)  # stands for the time that the collective takes

    watch = SimpleNamespace(poll=lambda: None, over=lambda steps: Power(steps + context.rank, 1900.0 - context.rank))
    with a_clock_of_its_own() as sleep, mock.patch.object(rank_timing, "PowerWatch", return_value=watch):
        phases = {"even": lambda: sleep(0.125), "uneven": lambda: sleep(0.25 + 0.5 * context.rank)}
        apart = time_steps_over_ranks(phases, context.device, warmup=1, steps=STEPS)
        waiting = time_steps_over_ranks({"start": start, "finish": finish}, context.device, warmup=0, steps=STEPS)
        step = {"step": lambda: within.append(gc.isenabled())}
        time_steps_over_ranks(step, context.device, warmup=2, steps=STEPS)
    by_name = max_over_ranks({"a": context.rank, "b": -context.rank}, context.device)
    return apart, waiting.timings, (within, gc.isenabled()), by_name


@pytest.fixture(scope="module")
def seen():
    """Return what each rank saw, grouped by what was measured."""
    return list(zip(*run_ranks(watching, 2, backend="gloo", timeout_s=60), strict=True))


@contextmanager
def a_clock_of_its_own():
    """Make this rank read a fake clock, and yield the sleep function that alone advances it."""
    slept_s = []
    with mock.patch.object(step_timing, "perf_counter", partial(sum, slept_s)):
        yield slept_s.append


def test_all_ranks_get_the_times_of_the_slowest_and_the_energy_of_all(seen):
    expected = {"even": [125.0] * STEPS, "uneven": [750.0] * STEPS, "train_step": [875.0] * STEPS}
    for sampling in seen[0]:
        assert {name: timings.host_ms for name, timings in sampling.timings.items()} == expected
        assert sampling.power == Power(2 * STEPS + 1.0, 1899.0)
    assert seen[3] == ({"a": 1.0, "b": 0.0},) * 2


def test_unfinished_communication_counts_in_the_phase_that_waits_for_it(seen):
    for timings in seen[1]:
        assert timings["start"].host_ms == [0.0] * STEPS
        assert timings["finish"].host_ms == timings["train_step"].host_ms == [250.0] * STEPS


def test_the_garbage_collector_is_off_while_a_step_is_timed(seen):
    assert seen[2] == (([True] * 2 + [False] * STEPS, True),) * 2


def come_late(context, folder):
    """Make rank 1 late to every step; list how often it had arrived whenever this rank read its clock."""
    numbers, comings, all_ranks = itertools.count(), [], dist.barrier

    def barrier():
        if context.rank == 1:
            time.sleep(LATE_S)
            (folder / str(next(numbers))).touch()
        all_ranks()

    def clock():
        comings.append(len(list(folder.iterdir())))
        return 0.0

    with mock.patch.object(step_timing, "perf_counter", clock), mock.patch.object(dist, "barrier", barrier):
        time_steps_over_ranks({"step": lambda: None}, context.device, warmup=0, steps=STEPS)
    return comings


def test_no_clock_is_read_before_all_ranks_have_arrived(tmp_path):
    for comings in run_ranks(come_late, 2, backend="gloo", args=(tmp_path,), timeout_s=60):
        readings = len(comings) // STEPS
        assert readings > 0
        assert [min(comings[readings * step :]) > step for step in range(STEPS)] == [True] * STEPS


def multiply(context):
    matrix = torch.randn(1024, 1024, device=context.device)
    phases = {"first": lambda: matrix @ matrix, "second": lambda: matrix @ matrix}
    return time_steps_over_ranks(phases, context.device, warmup=2, steps=3).timings


@pytest.mark.gpu(count=2)
def test_gpu_phases_are_separated_by_events_and_add_up_to_the_step():
    timings, _ = run_ranks(multiply, 2, backend="nccl", device_type="cuda")
    assert timings["first"].host_ms == []
    sums = [sum(pair) for pair in zip(timings["first"].cuda_events_ms, timings["second"].cuda_events_ms, strict=True)]
    assert all(
        total >= step or math.isclose(total, step, rel_tol=1e-6)
        for total, step in zip(sums, timings["train_step"].cuda_events_ms, strict=True)
    )
