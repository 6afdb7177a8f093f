"""Time variants of a step side by side: they take turns in rounds, and a row has the samples of all rounds."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pipeline.instruments.machine.gpu_state import slowdowns_among
from pipeline.instruments.machine.power import pooled_power
from pipeline.instruments.profilers.gpu_busy import GpuBusy, step_columns
from pipeline.instruments.sampling.gpu_readings import gpu_columns
from pipeline.instruments.sampling.rank_timing import STEP
from pipeline.instruments.sampling.step_timing import Sampling

Variant = TypeVar("Variant")


def turns(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[Variant, bool]]:
    """Let variants take turns, every second round in reverse, so that a slow drift affects all of them equally.

    Yields each variant with whether this is its first turn.
    """
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            yield variant, number == 0


def step_rows(samplings: Sequence[Sampling], busy: GpuBusy | None) -> list[dict[str, Any]]:
    """Return a row per phase and clock with the samples of all turns: phase, clock, status, turns and samples_ms.

    Each has the state of the GPU; the row of the whole step by the host clock also has what the GPU did.
    """
    power = pooled_power(sampling.power for sampling in samplings)
    slowdowns = slowdowns_among({reason for sampling in samplings for reason in sampling.slowdowns()})
    gpu = gpu_columns(samplings[0].state_before, samplings[-1].state_after, power, slowdowns)
    return [
        {
            "phase": name,
            "clock": clock,
            "status": "ok",
            "turns": len(samplings),
            **gpu,
            "samples_ms": [ms for sampling in samplings for ms in sampling.timings[name].by_clock()[clock]],
            **(step_columns(busy, power) if (name, clock) == (STEP, "host") else {}),
        }
        for name, timings in samplings[0].timings.items()
        for clock in timings.by_clock()
    ]
