"""Variants of a step side by side: they take turns in rounds, and the samples of all rounds make their rows."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, TypeVar

from pipeline.instruments.machine.gpu_state import slowdowns_among
from pipeline.instruments.machine.power import pooled_power
from pipeline.instruments.profilers.gpu_busy import GpuBusy, step_columns
from pipeline.instruments.sampling.rank_timing import STEP
from pipeline.instruments.sampling.stability import gpu_columns, status_columns
from pipeline.instruments.sampling.step_timing import Sampling
from pipeline.instruments.sampling.summary import summarise

Variant = TypeVar("Variant")


def turns(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[Variant, bool]]:
    """Let variants take turns, every second round in reverse, so that a slow drift of the machine falls on all alike.

    Yields each variant with whether this is its first turn.
    """
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            yield variant, number == 0


def step_rows(
    samplings: Sequence[Sampling], unstable_rel_error: float, tokens: int, busy: GpuBusy | None
) -> list[dict[str, Any]]:
    """Return a row per phase and clock with the samples of all turns: phase, clock, status, summary and samples_ms.

    Each is judged by its own samples and by how far its turns lie apart (pipeline.instruments.sampling.stability), and
    has the state of the GPU; the whole step by the host clock also what the GPU did. tokens: of a step, all ranks'.
    """
    power = pooled_power(sampling.power for sampling in samplings)
    gpu = gpu_columns(samplings[0].state_before, samplings[-1].state_after, power)
    slowdowns = slowdowns_among({reason for sampling in samplings for reason in sampling.slowdowns()})
    step_ms = median(sample for sampling in samplings for sample in sampling.timings[STEP].host_ms)
    rows = []
    for name, timings in samplings[0].timings.items():
        for clock in timings.by_clock():
            turns_ms = [sampling.timings[name].by_clock()[clock] for sampling in samplings]
            samples_ms = [sample for turn_ms in turns_ms for sample in turn_ms]
            status = status_columns(samples_ms, slowdowns, unstable_rel_error, list(map(median, turns_ms)), step_ms)
            row = {"phase": name, "clock": clock, **status, **summarise(samples_ms), **gpu, "samples_ms": samples_ms}
            whole = (name, clock) == (STEP, "host")
            rows.append(row | (step_columns(busy, power, step_ms, tokens) if whole else {}))
    return rows
