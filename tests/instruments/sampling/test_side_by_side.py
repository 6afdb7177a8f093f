"""Implementations of a toy problem: forward doubles a tensor, backward halves it."""

import itertools
import re
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import Skipped
from pipeline.instruments.sampling import side_by_side, step_timing, trying
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.kernel_timing import KernelSampler
from pipeline.instruments.sampling.side_by_side import Problem, SideBySide

from .simulated import Gpu

PHASES = ("forward", "backward", "forward_backward")


def settings(**changes):
    asked = {"min_samples": 3, "max_samples": 3, "rel_error": 0.0, "budget_s": 5.0, "call_limit_s": 5.0}
    return SimpleNamespace(**asked | changes)


SETTINGS = settings()
OOM = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 16.00 GiB.")


class Doubling(Problem):
    """A problem that is judged by `plain`; all implementations are called again after the timing."""

    phases, device = PHASES, torch.device("cpu")
    peers, calls_all_again = ("plain", "other", "third"), True

    def __init__(self):
        self.x, self.drawn = torch.empty(4), None

    def draw(self, seed):
        self.drawn = torch.randn(4, generator=torch.Generator().manual_seed(seed))
        self.x.copy_(self.drawn)

    def change_signs(self):
        self.x.neg_()

    def works(self, built):
        return {
            "forward": Work(lambda _: built(self.x)),
            "backward": Work(lambda y: y / 4, prepare=lambda: built(self.x)),
            "forward_backward": Work(lambda _: built(self.x) / 4),
        }

    def errors(self, _built, phase, result):
        if phase == "forward_backward":
            return {}
        off = result - {"forward": 2 * self.drawn, "backward": self.drawn / 2}[phase]
        return {phase: (off.norm().item(), off.abs().max().item())}

    @contextmanager
    def refusals(self, _name):
        try:
            yield
        except ValueError as error:
            raise Skipped(str(error)) from None

    def far_off(self, quantity, error, usual):
        return f"{quantity} is off by {error[0]:.2g}" if not error[0] <= usual[0] + 1e-6 else None


def double(x):
    return x + x


def measured(asked=SETTINGS, **functions):
    builds = {name: lambda built=built: built for name, built in {"plain": double, **functions}.items()}
    found = SideBySide(Doubling(), builds, asked, {})
    timed = found.time()
    found.judge_again()
    return {(row["impl"], row["phase"]): row for row in found.rows(timed, lambda key: {"of": key})}


def of(rows, name, column):
    return [rows[name, phase].get(column) for phase in PHASES]


def fails_at(call, error):
    """Return a function that doubles, but raises at one call."""
    calls = itertools.count(1)

    def function(x):
        if next(calls) == call:
            raise error
        return double(x)

    return function


def test_every_phase_has_its_own_samples_and_errors():
    rows = measured(ours=lambda x: x * 2)
    assert list(rows) == [(name, phase) for name in ("plain", "ours") for phase in PHASES]
    for (name, phase), row in rows.items():
        assert (row["status"], row["clock"], len(row["samples_ms"])) == ("ok", "host", 3)
        assert row["of"] == (name, phase)
        assert [column for column in row if "error" in column] == (
            [] if phase == PHASES[2] else [f"{phase}_rel_error", f"{phase}_max_error"]
        )


# The first six calls are trials, two of each phase; the twelfth is a warm-up call.
@pytest.mark.parametrize(("call", "failing"), [(1, PHASES), (3, PHASES[1:]), (5, PHASES[2:]), (12, PHASES[2:])])
def test_running_out_of_memory_fails_only_that_phase_and_in_trials_the_later_ones(call, failing):
    rows = measured(ours=fails_at(call, OOM))
    assert [phase for phase in PHASES if rows["ours", phase]["status"] == "oom"] == list(failing)
    assert all("out of memory" in rows["ours", phase]["reason"] for phase in failing)
    assert of(rows, "plain", "status") == ["ok"] * 3


def test_a_refusal_is_skipped_with_its_own_message_and_any_other_error_is_raised():
    rows = measured(ours=fails_at(1, ValueError("width is 48")))
    assert of(rows, "ours", "status") == ["skipped"] * 3
    assert of(rows, "ours", "reason") == ["width is 48"] * 3
    assert of(rows, "plain", "status") == ["ok"] * 3
    with pytest.raises(RuntimeError, match="illegal"):
        measured(ours=fails_at(2, RuntimeError("an illegal instruction")))


def test_a_call_above_the_limit_is_retried_once_and_then_skipped_with_its_time():
    delays_s = iter([0, 0.3])
    rows = measured(
        settings(call_limit_s=0.25),
        slow=lambda x: time.sleep(0.3) or double(x),
        once=lambda x: time.sleep(next(delays_s, 0)) or double(x),
    )
    assert (of(rows, "slow", "status"), of(rows, "once", "status")) == (["skipped"] * 3, ["ok"] * 3)
    reason = rows["slow", "forward"]["reason"]
    told = re.fullmatch(r"one forward call takes ([\d.]+) s, above the limit of 0\.25 s \(call_limit_s\)", reason)
    assert float(told[1]) >= 0.3
    assert "forward_rel_error" in rows["slow", "forward"]


@pytest.mark.parametrize(("slow_s", "warm_up_calls"), [(float("inf"), 2), (0, 0)])
def test_quick_calls_are_warmed_up_and_slow_ones_are_not(monkeypatch, slow_s, warm_up_calls):
    calls = []
    monkeypatch.setattr(side_by_side, "SLOW_S", slow_s)
    measured(ours=lambda x: calls.append(x) or double(x))
    tried, sampled, again = 2, SETTINGS.min_samples, 2
    assert len(calls) == len(PHASES) * (tried + warm_up_calls + sampled) + again


def test_the_seconds_of_a_sample_include_preparation(monkeypatch):
    slept_s = []
    for module in (trying, step_timing):
        monkeypatch.setattr(module, "perf_counter", lambda: sum(slept_s))
    work = Work(call=lambda _: slept_s.append(0.25), prepare=lambda: slept_s.append(0.5))
    called = trying.timed_call(work, torch.device("cpu"))
    assert (called.call_ms, called.sample_s) == (250.0, 0.75)


@pytest.mark.parametrize(("sample_s", "samples"), [(0.001, 10), (0.1, 10), (0.2, 5), (0.9, 3)])
def test_slow_calls_get_fewer_samples_but_never_fewer_than_the_minimum(sample_s, samples):
    asked = settings(min_samples=10, max_samples=20, budget_s=1.0)
    assert SideBySide(Doubling(), {"plain": lambda: double}, asked, {}).rule(sample_s).min_samples == samples


def test_wrong_and_nan_results_are_not_timed():
    calls = []
    rows = measured(ours=lambda x: calls.append(x) or 2.1 * x, nan=lambda x: x * float("nan"))
    assert len(calls) == 2 * len(PHASES)
    for name in ("ours", "nan"):
        assert of(rows, name, "status") == ["wrong"] * 3
        assert rows[name, "forward"]["reason"].startswith("forward is off by ")
        assert "samples_ms" not in rows[name, "forward"]
    # Records do not hold NaN.
    assert ["forward_rel_error" in rows[name, "forward"] for name in ("ours", "nan")] == [True, False]
    assert of(rows, "plain", "status") == ["ok"] * 3


def test_without_the_plain_way_all_are_judged_by_the_median_error_of_its_peers():
    rows = measured(plain=fails_at(1, OOM), other=double, third=lambda x: 3 * x, ours=double)
    statuses = {name: rows[name, "forward"]["status"] for name in ("plain", "other", "third", "ours")}
    assert statuses == {"plain": "oom", "other": "ok", "third": "wrong", "ours": "ok"}


def test_an_implementation_that_remembers_results_is_wrong_on_other_numbers():
    kept = []
    rows = measured(ours=lambda x: kept[0] if kept else kept.append(double(x)) or kept[0])
    assert of(rows, "ours", "status") == ["wrong"] * 3
    assert rows["ours", "forward"]["reason"].startswith("right at first, but not when it is called after the timing ")


def test_user_code_gets_other_numbers_before_each_timed_call_and_runs_in_its_context():
    seen, turns = [], []

    @contextmanager
    def turn():
        turns.append("begin")
        yield
        turns.append("end")

    def own(x):
        seen.append(x.clone())
        assert turns[-1] == "begin"
        return double(x)

    SideBySide(Doubling(), {"plain": lambda: double, "own": lambda: own}, SETTINGS, {"own": turn}).time()
    first, tried = seen[0], 2 * len(PHASES)
    assert all(torch.equal(x, first) for x in seen[:tried])
    assert all(torch.equal(one, -other) for one, other in itertools.pairwise(seen[tried:]))
    assert torch.equal(seen[tried].abs(), first.abs())


def test_gpu_rows_have_device_times_and_exposed_samples(monkeypatch):
    gpu = Gpu()
    gpu.flush_l2 = gpu.keep_busy = lambda *_: None  # so that each call begins before all of it is queued
    monkeypatch.setattr(side_by_side, "kernel_sampler", lambda _device: KernelSampler(gpu))
    assert {(row["clock"], row["exposed_samples"]) for row in measured().values()} == {("device", 3)}
