"""Measure a step8b cell: each implementation takes turns in its own processes, ours between two of its peer's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.stages.step8b.cell import COMPILED, WHOLE_STEP, Cell, Settings
from pipeline.stages.step8b.turn import Turn, measure_turn
from pipeline.ways.ranks import ENDS, Row, outcome, run_on_ranks

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return rows of times, budgets, what fusions gain, and checks."""
    settings = replace(settings, vocab_size=SIZES[cell.size].vocabulary(settings.vocab_size))
    turns: dict[str, list[Turn]] = {}
    failures: dict[str, Row] = {}
    with stopwatch.measuring(), _growing_segments():
        for impl in cell.turns:
            try:
                if impl in COMPILED:
                    require_compiler()
                turn = run_on_ranks(measure_turn, cell, settings, impl, impl not in turns)
                turns.setdefault(impl, []).append(turn)
            except ENDS as end:
                failures[impl] = outcome(end)
    rows = [{"impl": impl, **WHOLE_STEP, **failure} for impl, failure in failures.items()]
    return rows + [row for impl in turns if impl not in failures for row in rows_of(impl, turns[impl])]


@contextmanager
def _growing_segments() -> Iterator[None]:
    """Let the ranks' allocator grow its segments: blocks of many sizes would otherwise leave gaps of gigabytes."""
    before = os.environ.get(ALLOCATOR)
    os.environ[ALLOCATOR] = before or "expandable_segments:True"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALLOCATOR]


def rows_of(impl: str, turns: list[Turn]) -> list[Row]:
    """Make the rows of one implementation: samples of all its turns, and what only the first turn measures."""
    first, samplings = turns[0], [turn.sampling for turn in turns if turn.sampling is not None]
    once = [{"impl": impl, **row} for row in first.once]
    if first.sampling is None:
        return [{"impl": impl, **WHOLE_STEP, "status": "wrong", "reason": once[0]["reason"]}, *once]
    peaks = [turn.step["peak_bytes"] for turn in turns if turn.step.get("peak_bytes") is not None]
    whole = first.step | {"peak_bytes": max(peaks, default=None)}
    times = [{"impl": impl, "measures": "time", **row} for row in step_rows(samplings, first.busy)]
    return [*(row | (whole if WHOLE_STEP.items() <= row.items() else {}) for row in times), *once]
