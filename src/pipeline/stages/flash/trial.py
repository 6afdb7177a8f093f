"""Try one implementation alone: does it run, about how long does a call take, with how much memory, how exactly?"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from pipeline.attention.reference import ExactAttention, exact_attention
from pipeline.errors import Skipped
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.sampling.interleaving import Work
from pipeline.instruments.sampling.trying import measured_call, timed_call
from pipeline.stages.flash import implementations
from pipeline.stages.flash.cell import PHASES, Settings

Row = dict[str, Any]
T = TypeVar("T")


class Inputs:
    """Seeded normal queries, keys, values and gradient of the output, with the exact results."""

    def __init__(self, qkv: tuple[Tensor, Tensor, Tensor], output_gradient: Tensor, is_causal: bool) -> None:
        """Take tensors to be filled by `draw`."""
        self.qkv, self.output_gradient = qkv, output_gradient
        self._is_causal = is_causal
        self._exact: ExactAttention | None = None
        self._by_token: tuple[Tensor, ...] = ()

    @property
    def device(self) -> torch.device:
        """Return the device of the inputs."""
        return self.output_gradient.device

    @property
    def exact(self) -> ExactAttention:
        """Return the exact results for the numbers that were drawn last."""
        assert self._exact is not None  # drawn
        return self._exact

    @torch.no_grad()
    def draw(self, seed: int) -> None:
        """Put other numbers into the same tensors, and compute the exact results."""
        generator = torch.Generator(self.device).manual_seed(seed)
        for tensor in (*self.qkv, self.output_gradient):
            tensor.copy_(torch.randn(tensor.shape, generator=generator, device=self.device))
        self._exact = None  # before the next takes as much memory
        self._exact = exact_attention(*self.qkv, self.output_gradient, self._is_causal)
        for tensor, numbers in zip(self._by_token, (*self.qkv, self.output_gradient), strict=False):
            tensor.copy_(numbers.transpose(1, 2))

    def laid_out(self, by_token: bool) -> tuple[tuple[Tensor, ...], Tensor]:
        """Return q, k and v, and the output's gradient; by_token: as (batch, length, heads, head_dim), contiguous.

        The latter are other tensors with the same numbers, which are there from the first time on that they are asked
        for.
        """
        if not by_token:
            return self.qkv, self.output_gradient
        if not self._by_token:
            *qkv, gradient = (x.detach().transpose(1, 2).contiguous() for x in (*self.qkv, self.output_gradient))
            self._by_token = (*(x.requires_grad_() for x in qkv), gradient)
        return self._by_token[:3], self._by_token[3]

    @torch.no_grad()
    def change_signs(self) -> None:
        """Make other numbers of those that there are, without memory; the exact results are no longer theirs."""
        q, _k, v = self.qkv
        for tensor in (q, v, self.output_gradient):
            tensor.neg_()


@dataclass
class Trial:
    """The result of trying an implementation, by phase.

    works: phases that can be timed; sample_s: seconds of a sample, a call with its preparation; columns: what the calls
    showed; failures: status and reason of phases that cannot be timed.
    """

    works: dict[str, Work] = field(default_factory=dict)
    sample_s: dict[str, float] = field(default_factory=dict)
    columns: dict[str, Row] = field(default_factory=lambda: {phase: {} for phase in PHASES})
    failures: dict[str, Row] = field(default_factory=dict)


class _OutOfMemory(Exception):
    """A call ran out of memory; the message is the reason to record."""


def try_implementation(
    name: str, build: Callable[[], implementations.Implementation], inputs: Inputs, settings: Settings
) -> Trial:
    """Try forward, then backward, then both; after a failure the remaining phases fail with the same reason."""
    trial, status = Trial(), ""
    try:
        built = _or_raise(name, build)
        works = _or_raise(name, lambda: _works(built, inputs))
        for phase, work in works.items():
            _try_phase(name, phase, work, trial, inputs, settings, built.by_token)
    except Skipped as skipped:
        status, reason = "skipped", str(skipped)
    except _OutOfMemory as failed:
        status, reason = "oom", str(failed)
    if status:
        trial.failures = {phase: {"status": status, "reason": reason} for phase in PHASES if phase not in trial.works}
    return trial


def try_again(works: Mapping[str, Work], inputs: Inputs) -> Row:
    """Call an implementation once more, forward and, if that could be timed, backward; return the errors."""
    work = works.get(PHASES[1], works[PHASES[0]])
    with work.within():
        argument = work.prepare()
        result = work.call(argument)
    if PHASES[1] not in works:
        return _errors(PHASES[0], result, inputs.exact)
    return _errors(PHASES[0], argument, inputs.exact) | _errors(PHASES[1], result, inputs.exact)


def with_other_numbers(work: Work, inputs: Inputs) -> Work:
    """Return a work before whose calls the inputs change, so that it does not help to remember results."""

    def prepare() -> Any:
        inputs.change_signs()
        return work.prepare()

    return replace(work, prepare=prepare)


def _works(implementation: implementations.Implementation, inputs: Inputs) -> dict[str, Work]:
    """Return each phase as work to time. Each backward sample makes a new graph: none is kept between samples."""

    (q, k, v), output_gradient = inputs.laid_out(implementation.by_token)

    def forward(_nothing: None) -> Tensor:
        return implementation.attend(q, k, v)

    def backward(output: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(output, (q, k, v), output_gradient)

    within = implementation.within
    return {
        "forward": Work(forward, within=within),
        "backward": Work(backward, prepare=lambda: forward(None), within=within),
        "forward_backward": Work(lambda nothing: backward(forward(nothing)), within=within),
    }


def _try_phase(
    name: str, phase: str, work: Work, trial: Trial, inputs: Inputs, settings: Settings, by_token: bool
) -> None:
    """Run one phase twice: the first call compiles and loads, the second shows its time and memory.

    One that is too slow is called once more: a busy host may have been the cause. Raises Skipped if the implementation
    refuses the problem or is too slow, _OutOfMemory if memory runs out.
    """
    trial.columns[phase] |= _or_raise(name, lambda: _first_call(phase, work, inputs, by_token))
    if phase == PHASES[0]:
        free_memory()  # reference cycles left by compiling and by the previous implementation; once, because it is slow
    second, extra = _or_raise(name, lambda: measured_call(work, inputs.device))
    trial.columns[phase] |= extra
    called = second
    if called.call_ms / 1e3 > settings.call_limit_s:
        third = _or_raise(name, lambda: timed_call(work, inputs.device))
        called = min(second, third, key=lambda each: each.call_ms)
    call_s = called.call_ms / 1e3
    if call_s > settings.call_limit_s:
        words = phase.replace("_", " + ")
        limit = f"the limit of {settings.call_limit_s:g} s (call_limit_s)"
        raise Skipped(f"one {words} call takes {call_s:.2g} s, above {limit}")
    trial.works[phase], trial.sample_s[phase] = work, called.sample_s


def _or_raise(name: str, function: Callable[[], T]) -> T:
    """Call a function; raises Skipped if the implementation refuses, _OutOfMemory if memory runs out."""
    with implementations.refusals_as_skipped(name):
        value, reason = attempt(function)
    if reason is not None:
        raise _OutOfMemory(reason)
    return cast(T, value)  # None without a reason is the function's own result


def _first_call(phase: str, work: Work, inputs: Inputs, by_token: bool) -> Row:
    first = timed_call(work, inputs.device)
    return {"first_call_ms": first.call_ms, **_errors(phase, first.result, inputs.exact, by_token)}


def _errors(phase: str, result: Any, exact: ExactAttention, by_token: bool = False) -> Row:
    """Return relative (L2) and largest absolute errors of the output or of each gradient; nothing for both phases."""
    if phase == "forward":
        results = {"output": result}
    elif phase == "backward":
        results = dict(zip(("dq", "dk", "dv"), result, strict=True))
    else:
        return {}
    columns = {}
    for quantity, tensor in results.items():
        exact_tensor, tensor = getattr(exact, quantity), tensor.transpose(1, 2) if by_token else tensor
        columns[f"{quantity}_rel_error"] = exact.relative_error(quantity, tensor)
        columns[f"{quantity}_max_error"] = (tensor.detach().double() - exact_tensor).abs().max().item()
    return columns
