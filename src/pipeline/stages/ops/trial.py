"""Try one implementation alone: does it run, about how long does a call take, with how much memory, how exactly?"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch

from pipeline.errors import Skipped
from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.trying import Called, measured_call, peer_errors_as_skipped, timed_call
from pipeline.model.operation_problems import ADAMW, Errors, Problem, as_tuple
from pipeline.stages.ops.cell import ADAMW as ADAMW_OPERATION
from pipeline.stages.ops.cell import Settings
from pipeline.subjects.operation_check import far_off

Row = dict[str, Any]
T = TypeVar("T")
Build = Callable[[], Callable[..., Any]]
Within = Callable[[], AbstractContextManager]
AGAIN = (
    "right at first, but not when it is called after the timing with other numbers in the same tensors, as of one that "
    "remembers results or forgets to clear a buffer: "
)


@dataclass
class Trial:
    """The result of trying an implementation, by phase.

    works: phases that can be timed; sample_s: seconds of a sample, a call with its preparation; columns: what the calls
    showed; errors: of outputs and gradients; failure: status and reason of all phases that are not in works.
    """

    works: dict[str, Work] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Row] = field(default_factory=dict)
    errors: dict[str, Errors] = field(default_factory=dict)
    failure: Row = field(default_factory=dict)

    def fail(self, status: str, reason: str) -> None:
        """Give up all phases."""
        self.works, self.failure = {}, {"status": status, "reason": reason}


class _OutOfMemory(Exception):
    """A call ran out of memory; the message is the reason to record."""


def try_implementation(name: str, build: Build, problem: Problem, settings: Settings, within: Within) -> Trial:
    """Try each phase; after a failure the remaining phases fail with the same reason."""
    trial = Trial()
    try:
        works = _or_raise(name, lambda: works_of(build(), problem, within))
        for phase, work in works.items():
            _try_phase(name, phase, work, trial, problem, settings)
    except Skipped as skipped:
        trial.failure = {"status": "skipped", "reason": str(skipped)}
    except _OutOfMemory as failed:
        trial.failure = {"status": "oom", "reason": str(failed)}
    free_memory()  # reference cycles left by compiling, and what failed calls held
    return trial


def judge(trials: Mapping[str, Trial], problem: Problem) -> None:
    """Fail the implementations whose errors are far above the plain way's: wrong results have no times."""
    usual = trials["eager"].errors if "eager" in trials else {}
    for trial in trials.values():
        for what, errors in trial.errors.items():
            if said := far_off(what, errors, usual.get(what), problem):
                trial.fail("wrong", said)
                break


def judge_again(
    builds: Mapping[str, Build], trials: Mapping[str, Trial], problem: Problem, within: Mapping[str, Within]
) -> None:
    """Call what was timed once more, with numbers that it has never seen, and fail what is wrong with these."""
    again = {}
    for name in (name for name in builds if trials[name].works):
        works, _reason = attempt(works_of, builds[name](), problem, within[name])
        found = {} if works is None else _checked(works, problem)
        again[name] = Trial(errors=found)
    judge(again, problem)
    for name, trial in again.items():
        if trial.failure:
            trials[name].fail("wrong", AGAIN + trial.failure["reason"])


def _checked(works: Mapping[str, Work], problem: Problem) -> dict[str, Errors]:
    found: dict[str, Errors] = {}
    for phase, work in works.items():
        if phase == WHOLE and found:
            continue
        called, _reason = attempt(timed_call, work, problem.device)
        found |= {} if called is None else _errors(phase, called, problem)
    return found


def works_of(call: Callable[..., Any], problem: Problem, within: Within = nullcontext) -> dict[str, Work]:
    """Return each phase as work to time; before each call all tensors get their numbers back."""
    if problem.operation == ADAMW_OPERATION:
        return {WHOLE: _steps(call, problem, within)}

    def forward(_nothing: None) -> tuple[Any, ...]:
        return as_tuple(call(*problem.inputs, *problem.constants))

    def backward(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        weights = [gradient.to(each.dtype) for gradient, each in zip(problem.gradients, outputs, strict=True)]
        return torch.autograd.grad(outputs, problem.inputs, weights)

    def prepare() -> tuple[Any, ...]:
        problem.restore()
        return forward(None)

    return {
        FORWARD: Work(forward, problem.restore, within),
        BACKWARD: Work(backward, prepare, within),
        WHOLE: Work(lambda nothing: backward(forward(nothing)), problem.restore, within),
    }


def _steps(make: Callable[..., Any], problem: Problem, within: Within) -> Work:
    for weight, gradient in zip(problem.inputs, problem.gradients, strict=True):
        weight.grad = gradient
    optimizer = make(list(problem.inputs), **ADAMW)

    def step(_nothing: None) -> tuple[Any, ...]:
        optimizer.step()
        return problem.inputs

    return Work(step, problem.restore, within)


def with_other_numbers(work: Work, problem: Problem) -> Work:
    """Return a work before whose calls the numbers change, so that it does not help to remember results."""

    def prepare() -> Any:
        problem.change_signs()
        return work.prepare()

    return replace(work, prepare=prepare)


def _try_phase(name: str, phase: str, work: Work, trial: Trial, problem: Problem, settings: Settings) -> None:
    """Run one phase twice: the first call compiles and loads, the second shows its time and memory.

    Raises Skipped if the implementation refuses the problem or is too slow, _OutOfMemory if memory runs out.
    """
    first = _or_raise(name, lambda: timed_call(work, problem.device))
    trial.columns[phase] = {"first_call_ms": first.call_ms}
    found = _errors(phase, first, problem)
    trial.errors |= {what: errors for what, errors in found.items() if what not in trial.errors}
    for what, errors in found.items():
        trial.columns[phase] |= {f"{what}_rel_error": errors.rel, f"{what}_max_error": errors.top}
    del first
    second, extra = _or_raise(name, lambda: measured_call(work, problem.device))
    trial.columns[phase] |= extra
    if second.call_ms / 1e3 > settings.call_limit_s:
        limit = f"the limit of {settings.call_limit_s:g} s (call_limit_s)"
        raise Skipped(f"one {phase} call takes {second.call_ms / 1e3:.2g} s, above {limit}")
    trial.works[phase], trial.sample_s[phase] = work, second.sample_s


def _errors(phase: str, called: Called, problem: Problem) -> dict[str, Errors]:
    """Return the errors of what a phase gave; of both phases those of the gradients, as they are compared."""
    if problem.operation == ADAMW_OPERATION or phase == FORWARD:
        return {"output": problem.output_errors(called.result)}
    return {"gradient": problem.gradient_errors(called.result)}


def _or_raise(name: str, function: Callable[[], T]) -> T:
    """Call a function; raises Skipped if a peer refuses, _OutOfMemory if memory runs out."""
    with peer_errors_as_skipped(name):
        value, reason = attempt(function)
    if reason is not None:
        raise _OutOfMemory(reason)
    return cast(T, value)  # None without a reason is the function's own result
