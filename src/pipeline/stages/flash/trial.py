"""Try one implementation alone: does it run, how long does a call take about, how much memory, how exact is it?"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pipeline.attention.reference import ExactAttention
from pipeline.errors import Skipped
from pipeline.formulas.attention import Shape
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.step_timing import time_call_ms
from pipeline.stages.flash import implementations
from pipeline.stages.flash.cell import PHASES, Settings

Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """Seeded normal queries, keys, values and gradient of the output, and the exact results for them."""

    qkv: tuple[Tensor, Tensor, Tensor]
    output_gradient: Tensor
    exact: ExactAttention

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self.output_gradient.device


@dataclass
class Trial:
    """What can be timed of an implementation, how long a sample takes, what is known of each phase, and why not more.

    A sample is a call and its preparation.
    """

    works: dict[str, Work] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Row] = field(default_factory=lambda: {phase: {} for phase in PHASES})
    failures: dict[str, Row] = field(default_factory=dict)


@dataclass(frozen=True)
class _Called:
    """One call: its milliseconds by the host clock, the seconds with its preparation, and what it returned."""

    call_ms: float
    sample_s: float
    result: Any


class _OutOfMemory(Exception):
    """A call that ran out of memory; its message is the reason to record."""


def try_implementation(name: str, shape: Shape, inputs: Inputs, settings: Settings) -> Trial:
    """Try forward, then backward, then both; what follows a phase that fails is not tried and fails like it."""
    trial, status = Trial(), ""
    try:
        works = _or_raise(name, lambda: _works(implementations.build(name, shape, inputs.device), inputs))
        for phase, work in works.items():
            _try_phase(name, phase, work, trial, inputs, settings)
    except Skipped as skipped:
        status, reason = "skipped", str(skipped)
    except _OutOfMemory as failed:
        status, reason = "oom", str(failed)
    if status:
        trial.failures = {phase: {"status": status, "reason": reason} for phase in PHASES if phase not in trial.works}
    return trial


def _works(implementation: implementations.Implementation, inputs: Inputs) -> dict[str, Work]:
    """Return each phase as work to time. A backward phase gets a new graph each time: none is held between samples."""

    def forward(_nothing: None) -> Tensor:
        return implementation.attend(*inputs.qkv)

    def backward(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, inputs.qkv, inputs.output_gradient)

    within = implementation.within
    return {
        "forward": Work(forward, within=within),
        "backward": Work(backward, prepare=lambda: forward(None), within=within),
        "forward_backward": Work(lambda nothing: backward(forward(nothing)), within=within),
    }


def _try_phase(name: str, phase: str, work: Work, trial: Trial, inputs: Inputs, settings: Settings) -> None:
    """Run one phase twice: the first call compiles and loads, the second says how long it takes and how much memory.

    Raises Skipped where the implementation refuses the problem or is too slow, _OutOfMemory where memory ran out.
    """
    trial.columns[phase] |= _or_raise(name, lambda: _first_call(phase, work, inputs))
    if phase == PHASES[0]:
        free_memory()  # what compiling, and the implementation before, left in cycles; once, for it takes a while
    second, extra = _or_raise(name, lambda: _second_call(work, inputs.device))
    trial.columns[phase] |= extra
    call_s = second.call_ms / 1e3
    if call_s > settings.call_limit_s:
        words = phase.replace("_", " + ")
        raise Skipped(f"one {words} call takes {call_s:.2g} s, above the limit of {settings.call_limit_s:g} s")
    trial.works[phase], trial.sample_s[phase] = work, second.sample_s


def _or_raise(name: str, function: Callable[[], T]) -> T:
    """Call a function; raises Skipped where the implementation refuses, _OutOfMemory where memory ran out."""
    with implementations.refusals_as_skipped(name):
        value, reason = attempt(function)
    if reason is not None:
        raise _OutOfMemory(reason)
    return cast(T, value)  # None without a reason is what the function returned


def _first_call(phase: str, work: Work, inputs: Inputs) -> Row:
    first = _timed_call(work, inputs.device)
    return {"first_call_ms": first.call_ms, **_errors(phase, first.result, inputs.exact)}


def _second_call(work: Work, device: torch.device) -> tuple[_Called, Row]:
    """Make a call; return also, on a GPU, the most bytes that it, preparation included, adds to its inputs'."""
    if device.type != "cuda":
        return _timed_call(work, device), {}
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    called = _timed_call(work, device)
    return called, {"extra_bytes": torch.cuda.max_memory_allocated(device) - before}


def _timed_call(work: Work, device: torch.device) -> _Called:
    """Run a work once."""
    kept: list[Any] = []
    started = time.perf_counter()
    with work.within():
        argument = work.prepare()
        call_ms = time_call_ms(lambda: kept.append(work.call(argument)), device)
    return _Called(call_ms, time.perf_counter() - started, kept[0])


def _errors(phase: str, result: Any, exact: ExactAttention) -> Row:
    """Return relative (L2) and largest absolute errors: of the output, of each gradient, nothing for both phases."""
    if phase == "forward":
        results = {"output": result}
    elif phase == "backward":
        results = dict(zip(("dq", "dk", "dv"), result, strict=True))
    else:
        return {}
    columns = {}
    for quantity, tensor in results.items():
        columns[f"{quantity}_rel_error"] = exact.relative_error(quantity, tensor)
        columns[f"{quantity}_max_error"] = (tensor.detach().double() - getattr(exact, quantity)).abs().max().item()
    return columns
