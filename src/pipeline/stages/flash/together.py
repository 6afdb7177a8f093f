"""Measure implementations of attention in one process: try each alone, then time all of them in turn."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.memory.out_of_memory import attempt
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.interleaving import Interleaving, Taken, Work, interleave
from pipeline.instruments.sampling.kernel_timing import kernel_sampler, latency_sampler
from pipeline.instruments.sampling.step_timing import StopRule
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.summary import quartiles
from pipeline.peers import version_of
from pipeline.stages.flash import implementations
from pipeline.stages.flash.cell import PACKAGES, PHASES, SUSTAINED, Cell, Settings
from pipeline.stages.flash.trial import Inputs, Trial, try_again, try_implementation, with_other_numbers

if TYPE_CHECKING:
    from pipeline.instruments.sampling.sustained import Sustained

Row = dict[str, Any]
Key = tuple[str, str]  # implementation, phase

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
SEED, AGAIN_SEED = 0, 1
# Rounds that do not count. Every call has already run twice: these absorb momentary disturbances.
WARMUP_ROUNDS = 2
# The least number of samples for a call so slow that min_samples would exceed the budget.
FEWEST_SAMPLES = 3
# Samples above this are slow: they need no warm-up rounds, and a single call's latency is its device time.
SLOW_S = 0.02
LATENCY_RULE = StopRule(min_samples=5, max_samples=50, rel_error=0.01, budget_s=0.06)


class Measured(NamedTuple):
    """The rows of a cell, and of each implementation of the user's own its errors when called again after the timing.

    Without errors where there was no memory for that.
    """

    rows: list[Row]
    again: dict[str, Row]


def measure_together(
    cell: Cell, settings: Settings, stopwatch: Stopwatch, own: Mapping[str, implementations.Implementation]
) -> Measured:
    """Measure all implementations in this process, those of the user's own by name among them.

    Before each timed call of the latter the numbers in its inputs change: those of calls before are of no use to it.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    inputs = _inputs(cell, device)
    builds = {
        name: functools.partial(implementations.build, name, cell.shape, device)
        for name in implementations.names(cell, device)
    } | {name: functools.partial(lambda built: built, built) for name, built in own.items()}
    with stopwatch.measuring():
        trials = {name: try_implementation(name, build, inputs, settings) for name, build in builds.items()}
        works = {
            (name, phase): with_other_numbers(work, inputs) if name in own else work
            for name, trial in trials.items()
            for phase, work in trial.works.items()
        }
        sample_s = {(name, phase): trials[name].sample_s[phase] for name, phase in works}
        rules = {key: _rule(sample_s[key], settings) for key in works}
        slow = {key for key in works if sample_s[key] > SLOW_S}
        timed = interleave(works, kernel_sampler(device), rules, WARMUP_ROUNDS, warm=slow)
        latencies = _latencies({key: work for key, work in works.items() if key not in slow}, device)
        held = _held(cell, works, timed.taken, settings, device)
        again = _again({name: trials[name] for name in own if trials[name].works}, inputs)
    shared = _peak_columns(cell, device) | _choice_columns(cell, inputs)
    rows = [
        _row((name, phase), trial, timed, latencies, held, shared) for name, trial in trials.items() for phase in PHASES
    ]
    return Measured(rows, again)


def _again(trials: Mapping[str, Trial], inputs: Inputs) -> dict[str, Row]:
    """Call implementations once more, after the timing, with numbers in the same tensors that they have never seen."""
    if not trials or attempt(inputs.draw, AGAIN_SEED)[1] is not None:
        return {}
    found = {name: attempt(try_again, trial.works, inputs)[0] for name, trial in trials.items()}
    return {name: errors for name, errors in found.items() if errors is not None}


def _inputs(cell: Cell, device: torch.device) -> Inputs:
    heads, kv_heads = cell.num_heads, cell.shape.num_kv_heads
    q, k, v, output_gradient = (
        torch.empty(cell.batch_size, each, cell.seq_len, cell.head_dim, dtype=TORCH_DTYPES[cell.dtype], device=device)
        for each in (heads, kv_heads, kv_heads, heads)
    )
    inputs = Inputs((q.requires_grad_(), k.requires_grad_(), v.requires_grad_()), output_gradient, cell.is_causal)
    inputs.draw(SEED)
    return inputs


def _rule(sample_s: float, settings: Settings) -> StopRule:
    """Return the stop rule of a call, with fewer samples if min_samples would exceed the budget."""
    rule = StopRule(settings.min_samples, settings.max_samples, settings.rel_error, settings.budget_s)
    if sample_s * rule.min_samples <= rule.budget_s:
        return rule
    return dataclasses.replace(rule, min_samples=max(FEWEST_SAMPLES, int(rule.budget_s / sample_s)))


def _latencies(works: dict[Key, Any], device: torch.device) -> dict[Key, Taken]:
    """Time single calls by the host clock; on a CPU the samples already are."""
    if device.type == "cpu":
        return {}
    return interleave(works, latency_sampler(device), dict.fromkeys(works, LATENCY_RULE), warmup=0).taken


def _held(
    cell: Cell, works: Mapping[Key, Work], taken: Mapping[Key, Taken], settings: Settings, device: torch.device
) -> dict[Key, "Sustained"]:
    """Run what is SUSTAINED back to back, last of all, for it heats the GPU; nothing of what ran out of memory."""
    if device.type == "cpu" or cell.num_heads == 1 or not settings.sustained_s:
        return {}
    from pipeline.instruments.sampling.sustained import hold

    found = {}
    for key in SUSTAINED:
        if key in works and taken[key].out_of_memory is None:
            call_ms = quartiles(taken[key].times_ms["device"])[1]
            found[key], _reason = attempt(hold, works[key], call_ms, settings.sustained_s)
    return {key: sustained for key, sustained in found.items() if sustained is not None}


def _peak_columns(cell: Cell, device: torch.device) -> Row:
    """Return the peak rate at this precision where no data sheet is known; of fp32 on tensor cores also in TF32."""
    columns: Row = {"measured_peak_tflops_per_s": peak_to_measure(device, cell.dtype)}
    if cell.dtype == "fp32" and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        columns["measured_tf32_peak_tflops_per_s"] = peak_to_measure(device, "tf32")
    return columns


def _choice_columns(cell: Cell, inputs: Inputs) -> Row:
    """Return the backend that SDPA chooses by itself; nothing on a CPU, where the backends are not measured."""
    if inputs.device.type == "cpu":
        return {}
    return {"sdpa_choice": implementations.chosen_by_sdpa(*inputs.qkv, cell.shape)}


def _row(
    key: Key,
    trial: Trial,
    timed: Interleaving[Key],
    latencies: dict[Key, Taken],
    held: dict[Key, "Sustained"],
    shared: Row,
) -> Row:
    name, phase = key
    version = {"package_version": version_of(name)} if name in PACKAGES else {}
    row = {"impl": name, "phase": phase, **version, **trial.columns[phase]}
    if phase in trial.failures:
        return row | trial.failures[phase]
    taken = timed.taken[key]
    if taken.out_of_memory:
        return row | {"status": "oom", "reason": taken.out_of_memory}
    ((clock, samples_ms),) = list(taken.times_ms.items())[:1]
    return row | {
        "status": "ok",
        "clock": clock,
        **_sustained_columns(held.get(key)),
        **shared,
        "exposed_samples": taken.exposed,
        **_latency_columns(latencies.get(key)),
        **gpu_columns(timed.state_before, timed.state_after, timed.power, timed.slowdowns()),
        "samples_ms": samples_ms,
    }


def _sustained_columns(held: "Sustained | None") -> Row:
    return {} if held is None else {"sustained_ms": held.median_ms, "sustained_sm_clock_mhz": held.sm_clock_mhz}


def _latency_columns(taken: Taken | None) -> Row:
    """Return median and quartiles of a single call until it returns (enqueue) and until its work is done (call)."""
    if taken is None or taken.out_of_memory:
        return {}
    return {
        f"{statistic}_{name}_ms": value
        for name, samples_ms in taken.times_ms.items()
        for statistic, value in zip(("q1", "median", "q3"), quartiles(samples_ms), strict=True)
    }
