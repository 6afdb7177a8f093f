"""Variants of a step side by side: they take turns in rounds, and the samples of all rounds make their rows."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from pipeline.instruments.machine.gpu_state import slowdown_reasons
from pipeline.instruments.sampling.rank_timing import STEP
from pipeline.instruments.sampling.stability import status_columns
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.summary import summarise

Variant = TypeVar("Variant")


def turns(variants: Sequence[Variant], rounds: int) -> Iterator[tuple[Variant, bool]]:
    """Let variants take turns, every second round in reverse, so that a slow drift of the machine falls on all alike.

    Yields each variant with whether this is its first turn.
    """
    for number in range(rounds):
        for variant in variants if number % 2 == 0 else reversed(variants):
            yield variant, number == 0


def step_rows(samplings: Sequence[Sampling], unstable_rel_error: float) -> list[dict[str, Any]]:
    """Return a row per phase and clock with the samples of all turns: phase, clock, status, summary and samples_ms.

    All are judged by the whole step on the host clock: a wait of microseconds is noise, and no reason for doubt.
    """
    slowdowns = slowdown_reasons([state for sampling in samplings for state in sampling.state_after])
    timings = {name: _pooled([sampling.timings[name] for sampling in samplings]) for name in samplings[0].timings}
    status = status_columns(timings[STEP].host_ms, slowdowns, unstable_rel_error)
    return [
        {"phase": name, "clock": clock, **status, **summarise(samples_ms), "samples_ms": samples_ms}
        for name, timing in timings.items()
        for clock, samples_ms in timing.by_clock().items()
    ]


def _pooled(timings: Sequence[Timings]) -> Timings:
    return Timings(
        [sample for each in timings for sample in each.host_ms],
        [sample for each in timings for sample in each.cuda_events_ms],
    )
