import dataclasses
import itertools
from contextlib import contextmanager

import pytest
import torch

from pipeline.instruments.machine.power import Power
from pipeline.instruments.sampling import interleaving
from pipeline.instruments.sampling.interleaving import Interleaving, Sample, Work, interleave
from pipeline.instruments.sampling.kernel_timing import host_sampler
from pipeline.instruments.sampling.step_timing import StopRule

THREE = StopRule(min_samples=3, max_samples=3, rel_error=0.0, budget_s=60)


def rules(works, samples=3):
    return dict.fromkeys(works, dataclasses.replace(THREE, min_samples=samples, max_samples=samples))


def noting(calls, name, fails_at=None):
    """Return a work that logs its name, and runs out of memory at its call number `fails_at`."""

    def call(_argument):
        calls.append(name)
        if calls.count(name) == fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    return Work(call)


def plain(work):
    work.call(work.prepare())
    return Sample({"device": 1.0})


@pytest.mark.parametrize(
    ("warm", "samples", "order"),
    [((), (3, 3), "ab" * 5), ({"b"}, (3, 3), "a" * 2 + "ab" * 3), ((), (3, 5), "ab" * 5 + "b" * 2)],
)
def test_calls_take_turns_until_their_rules_end_and_warm_ones_skip_warm_up(warm, samples, order):
    calls, (of_a, of_b) = [], samples
    works = {name: noting(calls, name) for name in "ab"}
    found = interleave(works, plain, rules("a", of_a) | rules("b", of_b), warmup=2, warm=warm)
    assert "".join(calls) == order
    assert [taken.times_ms["device"] for taken in found.taken.values()] == [[1.0] * of_a, [1.0] * of_b]


def test_the_power_is_per_counted_round(monkeypatch):
    class Watch:
        polls = 0

        def poll(self):
            self.polls += 1

        def over(self, steps):
            return Power(energy_j=600.0 / steps, sm_clock_mhz=self.polls)

    monkeypatch.setattr(interleaving, "PowerWatch", Watch)
    works = {name: Work(lambda _: None) for name in "ab"}
    assert interleave(works, plain, rules(works), warmup=2).power == Power(energy_j=200.0, sm_clock_mhz=3)
    assert interleave(works, plain, rules(works, 1), warmup=2).power == Power(energy_j=600.0, sm_clock_mhz=1)


def test_the_rule_looks_at_the_first_clock():
    noisy = iter([1.0, 9.0] * 10)
    works, rule = {"a": Work(lambda _: None)}, StopRule(min_samples=4, max_samples=20, rel_error=0.01, budget_s=60)
    found = interleave(works, lambda _: Sample({"call": 1.0, "enqueue": next(noisy)}), {"a": rule}, warmup=0)
    assert len(found.taken["a"].times_ms["call"]) == 4


def test_slowdowns_are_those_seen_between_samples_and_after_the_last():
    before, after = ([{"throttle_reasons": [reason]}] for reason in ("hw_slowdown", "hw_power_brake"))
    assert Interleaving({}, before, after).slowdowns() == ["hw_power_brake"]
    between = Power(slowdowns=("sw_thermal_slowdown",))
    assert Interleaving({}, before, after, between).slowdowns() == ["sw_thermal_slowdown", "hw_power_brake"]


@pytest.mark.parametrize("fails_at", [1, 3])
def test_the_others_are_measured_if_one_runs_out_of_memory(fails_at):
    calls = []
    works = {"a": noting(calls, "a"), "b": noting(calls, "b", fails_at), "c": noting(calls, "c")}
    found = interleave(works, plain, rules(works), warmup=2)
    assert found.taken["b"].out_of_memory == "CUDA out of memory. Tried to allocate 20.00 GiB."
    assert [len(found.taken[name].times_ms["device"]) for name in "ac"] == [3, 3]
    assert calls.count("b") == fails_at


def test_each_call_gets_a_freshly_prepared_argument_inside_its_context():
    events = []

    @contextmanager
    def within():
        events.append("enter")
        yield
        events.append("exit")

    work = Work(call=events.append, prepare=lambda: events.append("prepare") or "argument", within=within)
    interleave({"a": work}, host_sampler(torch.device("cpu")), {"a": THREE}, warmup=0)
    assert events == ["enter", "prepare", "argument", "exit"] * 3


def test_the_budget_of_a_call_includes_its_preparation(clock):
    durations_s = itertools.cycle([0.125, 0.375])
    slow = Work(call=lambda _: clock.sleep(next(durations_s)), prepare=lambda: clock.sleep(0.25))
    rule = StopRule(min_samples=2, max_samples=1000, rel_error=0.0, budget_s=2.0)
    found = interleave({"a": slow}, host_sampler(torch.device("cpu")), {"a": rule}, warmup=0)
    assert found.taken["a"].times_ms["host"] == [125.0, 375.0] * 2
