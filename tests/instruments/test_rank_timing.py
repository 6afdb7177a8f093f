import gc
import math
import time

import pytest
import torch
import torch.distributed as dist

from pipeline.instruments.rank_timing import max_over_ranks, pooled, step_status, time_steps_over_ranks, turns
from pipeline.instruments.timing import Sampling, Timings
from pipeline.parallel.processes import run_ranks

SLOW_S, LATE_S = 0.03, 0.3


def ranks(function, *args):
    return run_ranks(function, 2, backend="gloo", args=args, timeout_s=60)


def sleep_on_rank_1(context):
    phases = {"even": lambda: None, "uneven": lambda: time.sleep(SLOW_S * context.rank)}
    return time_steps_over_ranks(phases, context.device, warmup=1, steps=4).timings


def test_a_sample_is_the_time_of_the_slowest_rank_on_every_rank():
    first, second = ranks(sleep_on_rank_1)
    assert first == second
    assert min(first["uneven"].host_ms) >= 1e3 * SLOW_S
    assert min(first["train_step"].host_ms) >= 1e3 * SLOW_S
    assert min(first["even"].host_ms) < 1e3 * SLOW_S / 3
    assert {len(timings.host_ms) for timings in first.values()} == {4}


def wait_late(context):
    time.sleep(LATE_S * context.rank)
    pending = []

    def start():
        pending.append(dist.all_reduce(torch.ones(8), async_op=True))

    def finish():
        pending.pop().wait()
        time.sleep(SLOW_S)

    return time_steps_over_ranks({"start": start, "finish": finish}, context.device, warmup=0, steps=3).timings


def test_what_is_left_of_communication_counts_in_the_phase_that_waits_and_a_late_rank_in_none():
    timings, _ = ranks(wait_late)
    assert min(timings["start"].host_ms) < 1e3 * SLOW_S
    assert min(timings["finish"].host_ms) >= 1e3 * SLOW_S
    assert max(timings["train_step"].host_ms) < 1e3 * LATE_S


def collects(context):
    within = []
    time_steps_over_ranks({"step": lambda: within.append(gc.isenabled())}, context.device, warmup=2, steps=3)
    return within, gc.isenabled()


def test_no_garbage_is_collected_while_a_step_is_timed_after_warm_up():
    assert ranks(collects) == [([True] * 2 + [False] * 3, True)] * 2


def test_turns_go_back_and_forth():
    assert list(turns("abc", rounds=3)) == [*"abc", *"cba", *"abc"]


def own_values(context):
    return max_over_ranks({"a": context.rank, "b": -context.rank}, context.device)


def test_the_maximum_is_taken_by_name():
    assert ranks(own_values) == [{"a": 1.0, "b": 0.0}] * 2


def sampling(samples_ms, throttle_reasons=()):
    state = [{"throttle_reasons": list(throttle_reasons)}]
    waits = Timings([0.001, 0.01, 0.1, 0.5])
    return Sampling({"communication": waits, "train_step": Timings(samples_ms)}, state, state)


def test_pooled_samples_and_states_are_those_of_all():
    joined = pooled([sampling([1.0, 2.0]), sampling([3.0], ["hw_slowdown"])])
    assert joined.timings["train_step"].host_ms == [1.0, 2.0, 3.0]
    assert joined.slowdowns() == ["hw_slowdown"]


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (sampling([10.0, 10.1, 10.2, 10.1]), "ok"),
        (sampling([10.0, 20.0, 30.0, 5.0]), "unstable"),
        (sampling([10.0] * 4, ["hw_thermal_slowdown"]), "unstable"),
    ],
)
def test_noise_and_slowdowns_make_a_step_unstable(found, status):
    judged = step_status(found, unstable_rel_error=0.05)
    assert judged["status"] == status
    assert ("reason" in judged) == (status == "unstable")


def multiply(context):
    matrix = torch.randn(1024, 1024, device=context.device)
    phases = {"first": lambda: matrix @ matrix, "second": lambda: matrix @ matrix}
    return time_steps_over_ranks(phases, context.device, warmup=2, steps=3).timings


@pytest.mark.gpu
def test_on_gpus_phases_are_told_apart_by_events_and_add_up_to_the_step():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    timings, _ = run_ranks(multiply, 2, backend="nccl", device_type="cuda")
    assert timings["first"].host_ms == []
    sums = [sum(pair) for pair in zip(timings["first"].cuda_events_ms, timings["second"].cuda_events_ms, strict=True)]
    assert all(
        total >= step or math.isclose(total, step, rel_tol=1e-6)
        for total, step in zip(sums, timings["train_step"].cuda_events_ms, strict=True)
    )
