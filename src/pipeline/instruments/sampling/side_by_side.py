"""Compare implementations of one problem: try each alone, judge it, time all in turn, judge again on other numbers."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, TypeVar, cast

import torch

from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.interleaving import Interleaving, Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from pipeline.instruments.sampling.trying import measured_call, peer_errors_as_skipped, timed_call
from pipeline.peers import PEERS, version_of

Row = dict[str, Any]
Key = tuple[str, str]  # implementation, phase
T = TypeVar("T")
# For each quantity, its relative and its largest error.
Errors = Mapping[str, tuple[float, float]]
KINDS = ("rel", "max")

SEED, AGAIN_SEED = 0, 1
# Rounds that do not count. Every call has already run twice: these absorb momentary disturbances.
WARMUP_ROUNDS = 2
# The least number of samples for a call so slow that min_samples would exceed the budget.
FEWEST_SAMPLES = 3
# Samples above this are slow: they need no warm-up rounds, and a single call's latency is its device time.
SLOW_S = 0.02
AGAIN = (
    "right at first, but not when it is called after the timing with other numbers in the same tensors, as of one that "
    "remembers results or forgets to clear a buffer: "
)


class Problem(ABC):
    """The problem that implementations solve, and how their results are judged.

    phases: in the order in which they are tried; a phase that combines others comes last. peers: the plain way, by
    whose errors all are judged, then those that stand in for it. calls_all_again: call all of them again after the
    timing, not only the user's own and the peers.
    """

    phases: tuple[str, ...]
    device: torch.device
    peers: tuple[str, ...]
    calls_all_again: bool

    @abstractmethod
    def draw(self, seed: int) -> None:
        """Put other numbers into the same tensors."""

    @abstractmethod
    def change_signs(self) -> None:
        """Change the numbers in place, without extra memory; earlier results are wrong afterwards."""

    @abstractmethod
    def works(self, built: Any) -> dict[str, Work]:
        """Return each phase of a built implementation as work to time."""

    @abstractmethod
    def errors(self, built: Any, phase: str, result: Any) -> Errors:
        """Return the errors of a phase's result; a combined phase need not repeat those of its parts."""

    @abstractmethod
    def far_off(self, quantity: str, error: tuple[float, float], usual: tuple[float, float] | None) -> str | None:
        """Describe an error that is NaN or far above the usual one, if that is known; None if it is acceptable."""

    def refusals(self, name: str) -> AbstractContextManager:
        """Turn the errors by which an implementation refuses the problem into Skipped."""
        return peer_errors_as_skipped(name)


@dataclass
class Trial:
    """The result of trying an implementation, by phase.

    works: phases that can be timed; sample_s: seconds per sample, a call with its preparation; columns: row columns
    from these calls; errors: by quantity; failure: status and reason of all phases that are not in works.
    """

    works: dict[str, Work] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Row] = field(default_factory=dict)
    errors: dict[str, tuple[float, float]] = field(default_factory=dict)
    failure: Row = field(default_factory=dict)


class _OutOfMemory(Exception):
    """A call ran out of memory; the message is the reason to record."""


class SideBySide:
    """Implementations of a problem, tried and judged; `works` are the phases to time, `slow` the slow ones of them."""

    def __init__(
        self,
        problem: Problem,
        builds: Mapping[str, Callable[[], Any]],
        settings: Any,
        own: Mapping[str, Callable[[], AbstractContextManager]],
    ) -> None:
        """Try and judge each implementation.

        own: the user's own implementations, with the context in which each one runs. The numbers change before each of
        their timed calls, so remembered results are of no use. settings: the fields of a `StopRule` and `call_limit_s`.
        """
        self.problem, self.builds, self.settings, self.own = problem, builds, settings, own
        problem.draw(SEED)
        self.trials = {name: self._try(name) for name in builds}
        self._judge({name: trial.errors for name, trial in self.trials.items()}, "")
        self.works = {
            (name, phase): self._with_other_numbers(work) if name in own else work
            for name, trial in self.trials.items()
            for phase, work in trial.works.items()
        }
        self.slow = {(name, phase) for name, phase in self.works if self.trials[name].sample_s[phase] > SLOW_S}

    def time(self) -> Interleaving[Key]:
        """Time all in turn."""
        rules = {(name, phase): self.rule(self.trials[name].sample_s[phase]) for name, phase in self.works}
        return interleave(self.works, kernel_sampler(self.problem.device), rules, WARMUP_ROUNDS, warm=self.slow)

    def rule(self, sample_s: float) -> StopRule:
        """Return the stop rule of a call, with fewer samples if min_samples would exceed the budget."""
        asked = self.settings
        rule = StopRule(asked.min_samples, asked.max_samples, asked.rel_error, asked.budget_s)
        if sample_s * rule.min_samples <= rule.budget_s:
            return rule
        return dataclasses.replace(rule, min_samples=max(FEWEST_SAMPLES, int(rule.budget_s / sample_s)))

    def judge_again(self) -> None:
        """Call what was timed once more with new numbers, and fail implementations that are wrong on these."""
        asked = {*self.own, *self.problem.peers} if self.own else set[str]()
        chosen = [name for name in self.trials if name in asked or self.problem.calls_all_again]
        names = [name for name in chosen if self.trials[name].works]
        if names and attempt(self.problem.draw, AGAIN_SEED)[1] is None:
            self._judge({name: self._errors_again(name) for name in names}, AGAIN)

    def rows(self, timed: Interleaving[Key], columns: Callable[[Key], Row]) -> list[Row]:
        """Return a row for each implementation and phase; columns: returns the extra columns of the timed ones."""
        return [self._row((name, phase), timed, columns) for name in self.trials for phase in self.problem.phases]

    def _try(self, name: str) -> Trial:
        """Try each phase; after a failure the remaining phases fail with the same reason."""
        trial = Trial()
        try:
            built = self._or_raise(name, self.builds[name])
            works = self._or_raise(name, lambda: self._works(name, built))
            for phase, work in works.items():
                self._try_phase(name, built, phase, work, trial)
        except Skipped as skipped:
            trial.failure = {"status": "skipped", "reason": str(skipped)}
        except _OutOfMemory as failed:
            trial.failure = {"status": "oom", "reason": str(failed)}
        return trial

    def _works(self, name: str, built: Any) -> dict[str, Work]:
        works = self.problem.works(built)
        if name not in self.own:
            return works
        return {phase: dataclasses.replace(work, within=self.own[name]) for phase, work in works.items()}

    def _try_phase(self, name: str, built: Any, phase: str, work: Work, trial: Trial) -> None:
        """Run one phase twice: the first call compiles and loads, the second shows its time and memory.

        A call that is too slow is repeated once: a busy host may have been the cause. Raises Skipped if the
        implementation refuses the problem or is too slow, _OutOfMemory if memory runs out.
        """
        device = self.problem.device
        trial.columns[phase] = self._or_raise(name, lambda: self._first_call(built, phase, work, trial))
        if phase == self.problem.phases[0]:
            free_memory()  # reference cycles left by compiling and by the previous implementation; once, as it is slow
        called, extra = self._or_raise(name, lambda: measured_call(work, device))
        trial.columns[phase] |= extra
        if called.call_ms / 1e3 > self.settings.call_limit_s:
            third = self._or_raise(name, lambda: timed_call(work, device))
            called = min(called, third, key=lambda each: each.call_ms)
        call_s = called.call_ms / 1e3
        if call_s > self.settings.call_limit_s:
            words = phase.replace("_", " + ")
            limit = f"the limit of {self.settings.call_limit_s:g} s (call_limit_s)"
            raise Skipped(f"one {words} call takes {call_s:.2g} s, above {limit}")
        trial.works[phase], trial.sample_s[phase] = work, called.sample_s

    def _first_call(self, built: Any, phase: str, work: Work, trial: Trial) -> Row:
        first = timed_call(work, self.problem.device)
        found = self.problem.errors(built, phase, first.result)
        trial.errors |= {what: error for what, error in found.items() if what not in trial.errors}
        errors = {
            f"{what}_{kind}_error": value
            for what, error in found.items()
            for kind, value in zip(KINDS, error, strict=True)
            if math.isfinite(value)  # a record's values must be
        }
        return {"first_call_ms": first.call_ms, **errors}

    def _or_raise(self, name: str, function: Callable[[], T]) -> T:
        """Call a function; raises Skipped if the implementation refuses, _OutOfMemory if memory runs out."""
        with self.problem.refusals(name):
            value, reason = attempt(function)
        if reason is not None:
            raise _OutOfMemory(reason)
        return cast(T, value)  # None without a reason is the function's own result

    def _with_other_numbers(self, work: Work) -> Work:
        def prepare() -> Any:
            self.problem.change_signs()
            return work.prepare()

        return dataclasses.replace(work, prepare=prepare)

    def _errors_again(self, name: str) -> Errors:
        """Return the errors of one more call of each timed phase, without those that run out of memory."""
        found: dict[str, tuple[float, float]] = {}
        built = self.builds[name]()
        works, _reason = attempt(self._works, name, built)
        for phase, work in (works or {}).items():
            if phase not in self.trials[name].works or (phase == self.problem.phases[-1] and found):
                continue
            called, _reason = attempt(timed_call, work, self.problem.device)
            found |= {} if called is None else self.problem.errors(built, phase, called.result)
        return found

    def _judge(self, found: Mapping[str, Errors], words: str) -> None:
        """Fail implementations whose errors are far above the usual: wrong results have no times."""
        for name, errors in found.items():
            said = (self.problem.far_off(what, error, self._usual(what, found)) for what, error in errors.items())
            if reason := next(filter(None, said), None):
                trial = self.trials[name]
                trial.works, trial.failure = {}, {"status": "wrong", "reason": words + reason}

    def _usual(self, quantity: str, found: Mapping[str, Errors]) -> tuple[float, float] | None:
        """Return the errors of the plain way, else the medians of the other peers; None if no peer has any."""
        plain, *others = self.problem.peers
        if quantity in found.get(plain, ()):
            return found[plain][quantity]
        errors = [found[name][quantity] for name in others if quantity in found.get(name, ())]
        rels, tops = zip(*errors, strict=True) if errors else ((), ())
        return (median_low(rels), median_low(tops)) if errors else None  # one wrong peer does not move them

    def _row(self, key: Key, timed: Interleaving[Key], columns: Callable[[Key], Row]) -> Row:
        (name, phase), trial = key, self.trials[key[0]]
        version = {"package_version": version_of(name)} if name in PEERS else {}
        row = {"impl": name, "phase": phase, **version, **trial.columns.get(phase, {})}
        if phase not in trial.works:
            return row | trial.failure
        taken = timed.taken[key]
        if taken.out_of_memory:
            return row | {"status": "oom", "reason": taken.out_of_memory}
        ((clock, samples_ms),) = list(taken.times_ms.items())[:1]
        return row | {
            "status": "ok",
            "clock": clock,
            **columns(key),
            "exposed_samples": taken.exposed,
            **gpu_columns(timed.state_before, timed.state_after, timed.power, timed.slowdowns()),
            "samples_ms": samples_ms,
        }
