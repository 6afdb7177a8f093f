"""Measure implementations of an operation in one process: try each alone, then time all of them in turn."""

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch

from pipeline.instruments.machine.peaks import bandwidth_to_measure, peak_to_measure
from pipeline.instruments.memory.out_of_memory import attempt
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.interleaving import Interleaving, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.model.operation_problems import Problem
from pipeline.peers import version_of
from pipeline.stages.ops import implementations
from pipeline.stages.ops.cell import ADAMW, PACKAGES, Cell, Settings
from pipeline.stages.ops.trial import Build, Trial, Within, judge, judge_again, try_implementation, with_other_numbers

Row = dict[str, Any]
Key = tuple[str, str]  # implementation, phase

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SEED, AGAIN_SEED = 0, 1
WARMUP_ROUNDS = 2
# The least number of samples for a call so slow that min_samples would exceed the budget.
FEWEST_SAMPLES = 3
# Samples above this are slow: they need no warm-up rounds.
SLOW_S = 0.02


def measure_together(
    cell: Cell,
    settings: Settings,
    stopwatch: Stopwatch,
    own: Mapping[str, Build],
    within: Callable[[str], AbstractContextManager] = lambda _name: nullcontext(),
) -> list[Row]:
    """Measure all implementations in this process, those of the user's own by name among them.

    Before each timed call of the latter the numbers change: those of calls before are of no use to it. within: the
    context of each implementation's calls.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    problem = Problem(cell.op, cell.widths, TORCH_DTYPES[cell.dtype], device)
    problem.draw(SEED)
    builds = {name: partial(implementations.build, name, cell.op, settings, device) for name in cell.impls} | dict(own)
    contexts: dict[str, Within] = {name: partial(within, name) for name in builds}
    with stopwatch.measuring():
        trials = {
            name: try_implementation(name, build, problem, settings, contexts[name]) for name, build in builds.items()
        }
        judge(trials, problem)
        timed = _timed(trials, problem, settings, own)
        if attempt(problem.draw, AGAIN_SEED)[1] is None:
            judge_again(_again(builds, own, cell), trials, problem, contexts)
    shared = _shared_columns(cell, device)
    return [_row((name, phase), trial, timed, shared) for name, trial in trials.items() for phase in cell.phases]


def _timed(
    trials: Mapping[str, Trial], problem: Problem, settings: Settings, own: Mapping[str, Build]
) -> Interleaving[Key]:
    works = {
        (name, phase): with_other_numbers(work, problem) if name in own else work
        for name, trial in trials.items()
        for phase, work in trial.works.items()
    }
    sample_s = {(name, phase): trials[name].sample_s[phase] for name, phase in works}
    rules = {key: _rule(sample_s[key], settings) for key in works}
    slow = {key for key in works if sample_s[key] > SLOW_S}
    return interleave(works, kernel_sampler(problem.device), rules, WARMUP_ROUNDS, warm=slow)


def _again(builds: Mapping[str, Build], own: Mapping[str, Build], cell: Cell) -> dict[str, Build]:
    """Choose what is called again after the timing: all, of optimizers, whose steps would be compiled anew, the own."""
    return {name: build for name, build in builds.items() if cell.op != ADAMW or name in (*own, "eager")}


def _rule(sample_s: float, settings: Settings) -> StopRule:
    """Return the stop rule of a call, with fewer samples if min_samples would exceed the budget."""
    rule = StopRule(settings.min_samples, settings.max_samples, settings.rel_error, settings.budget_s)
    if sample_s * rule.min_samples <= rule.budget_s:
        return rule
    return dataclasses.replace(rule, min_samples=max(FEWEST_SAMPLES, int(rule.budget_s / sample_s)))


def _shared_columns(cell: Cell, device: torch.device) -> Row:
    """Return what no data sheet tells: the bandwidth, and where there are matrix products their peak."""
    has_products = cell.op == "linear_cross_entropy"
    peak = peak_to_measure(device, cell.dtype) if has_products else None
    return {"measured_gb_per_s": bandwidth_to_measure(device), "measured_peak_tflops_per_s": peak}


def _row(key: Key, trial: Trial, timed: Interleaving[Key], shared: Row) -> Row:
    name, phase = key
    version = {"package_version": version_of(name)} if name in PACKAGES else {}
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
        **shared,
        "exposed_samples": taken.exposed,
        **gpu_columns(timed.state_before, timed.state_after, timed.power, timed.slowdowns()),
        "samples_ms": samples_ms,
    }
