"""Measure an attention cell: memory of each mode alone, then the phases of both modes, interleaved."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from torch import Tensor

from pipeline.attention import ATTENTION
from pipeline.errors import Skipped
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.memory.out_of_memory import attempt, free_memory
from pipeline.instruments.memory.saved_tensors import saved_bytes
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.interleaving import Interleaving, Work, interleave
from pipeline.instruments.sampling.kernel_timing import host_sampler
from pipeline.instruments.sampling.step_timing import StopRule, synchronize
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.attention.cell import MODES, PHASES, Cell, Settings

Row = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A function with seeded normal inputs and a seeded gradient of its output."""

    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: tuple[Tensor, ...]
    output_gradient: Tensor

    def forward(self) -> Tensor:
        """Return the output, with its graph."""
        return self.attend(*self.inputs)

    def backward(self, output: Tensor) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs, and free the graph."""
        return torch.autograd.grad(output, self.inputs, self.output_gradient)


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return a row per mode, phase and clock; if one mode runs out of memory, the other is still measured."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problems = _problems(cell, settings, device)
    with stopwatch.measuring():
        trials = {mode: _try(problem, mode, device) for mode, problem in problems.items()}
        works = {
            (mode, phase): work
            for mode, problem in problems.items()
            for phase, work in _works(problem).items()
            if phase not in trials[mode][0]
        }
        rule = StopRule(settings.passes, settings.passes, rel_error=0.0, budget_s=math.inf)
        timed = interleave(works, host_sampler(device), dict.fromkeys(works, rule), settings.warmup_passes)
    on_gpu = device.type == "cuda"
    memory_bytes = torch.cuda.get_device_properties(device).total_memory if on_gpu else psutil.virtual_memory().total
    shared = {"memory_bytes": memory_bytes, "device_type": device.type}
    return [
        {"mode": mode, "phase": phase, **row, **shared}
        for mode in MODES
        for phase in PHASES
        for row in _rows(mode, phase, *trials[mode], timed)
    ]


def _problems(cell: Cell, settings: Settings, device: torch.device) -> dict[str, Problem]:
    """Return each mode's function with the same inputs of shape (batch, seq, head_dim): a single head."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (settings.batch_size, cell.seq_len, cell.head_dim)
    q, k, v, output_gradient = (torch.randn(shape, generator=generator, device=device) for _ in range(4))
    inputs = tuple(tensor.requires_grad_() for tensor in (q, k, v))
    attend = functools.partial(ATTENTION["eager"], is_causal=settings.is_causal)
    functions: dict[str, Callable[..., Tensor]] = {"eager": attend, "compiled": torch.compile(attend, dynamic=False)}
    return {mode: Problem(functions[mode], inputs, output_gradient) for mode in MODES}


def _works(problem: Problem) -> dict[str, Work]:
    return {
        "forward": Work(call=lambda _: problem.forward()),
        "backward": Work(call=problem.backward, prepare=problem.forward),
    }


def _try(problem: Problem, mode: str, device: torch.device) -> tuple[dict[str, Row], Row]:
    """Run a mode alone: to compile and load, and to measure saved tensors and allocated memory.

    Returns the outcomes of the phases that fail, and the columns of memory.
    """
    failures, memory = dict[str, Row](), Row()
    try:
        if mode == "compiled":
            require_compiler()
    except Skipped as skipped:
        return {phase: {"status": "skipped", "reason": str(skipped)} for phase in PHASES}, memory
    for phase, run in {"forward": problem.forward, "backward": lambda: problem.backward(problem.forward())}.items():
        _, reason = attempt(run)
        if reason:
            failures[phase] = {"status": "oom", "reason": reason}
    if "forward" not in failures:
        memory["saved_bytes"], _ = attempt(saved_bytes, problem.forward, problem.inputs)
    if not failures and device.type == "cuda":
        memory |= _allocated_bytes(problem, device)
    return failures, memory


def _allocated_bytes(problem: Problem, device: torch.device) -> Row:
    """Return the bytes in use between forward and backward and at the peak, both including the inputs.

    Also returned: the part that is workspace, which the matrix-product library keeps between calls.
    """
    free_memory()
    inputs_bytes = sum(tensor.nbytes for tensor in (*problem.inputs, problem.output_gradient))
    workspace_bytes = torch.cuda.memory_allocated(device) - inputs_bytes
    torch.cuda.reset_peak_memory_stats(device)
    output = problem.forward()
    synchronize(device)
    before_backward = torch.cuda.memory_allocated(device)
    problem.backward(output)
    synchronize(device)
    return {
        "before_backward_bytes": before_backward,
        "peak_bytes": torch.cuda.max_memory_allocated(device),
        "workspace_bytes": workspace_bytes,
    }


def _rows(
    mode: str, phase: str, failures: dict[str, Row], memory: Row, timed: Interleaving[tuple[str, str]]
) -> list[Row]:
    if phase in failures:
        return [{"clock": "host", **failures[phase]}]
    taken = timed.taken[mode, phase]
    if taken.out_of_memory:
        return [{"clock": "host", "status": "oom", "reason": taken.out_of_memory}]
    gpu = gpu_columns(timed.state_before, timed.state_after, timed.power, timed.slowdowns())
    return [
        {"clock": clock, "status": "ok", **memory, **gpu, "samples_ms": samples_ms}
        for clock, samples_ms in taken.times_ms.items()
    ]
