"""Measure a step8b cell: each implementation in processes of its own, in turn, ours between two turns of its peer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from statistics import median

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.toolchain import require_compiler
from pipeline.instruments.sampling.rank_timing import STEP
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.stages.step8b.cell import KEEPING_COLUMNS, WHOLE_STEP, Cell, Settings
from pipeline.stages.step8b.correctness import why_wrong
from pipeline.stages.step8b.keeping import Keeping
from pipeline.stages.step8b.ranks import Timed, Turn, measure_turn
from pipeline.ways.ranks import ENDS, Row, outcome, run_on_ranks

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[Row]:
    """Return rows of times, of where they go, of what fusions buy, and of the checks."""
    settings = replace(settings, vocab_size=SIZES[cell.size].vocabulary(settings.vocab_size))
    turns: dict[str, list[Turn]] = {}
    failures: dict[str, Row] = {}
    with stopwatch.measuring(), _growing_segments():
        for impl in cell.turns:
            try:
                if impl == "torch_compiled":
                    require_compiler()
                turn = run_on_ranks(measure_turn, cell, settings, impl, impl not in turns)
                turns.setdefault(impl, []).append(turn)
            except ENDS as end:
                failures[impl] = outcome(end)
    rows = [{"impl": impl, **WHOLE_STEP, **failure} for impl, failure in failures.items()]
    measured = [impl for impl in turns if impl not in failures]
    return rows + [row for impl in measured for row in rows_of(impl, turns[impl], settings)]


@contextmanager
def _growing_segments() -> Iterator[None]:
    """Let the ranks' allocator grow its segments: blocks of many sizes would leave gaps of gigabytes else."""
    before = os.environ.get(ALLOCATOR)
    os.environ[ALLOCATOR] = before or "expandable_segments:True"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALLOCATOR]


def rows_of(impl: str, turns: list[Turn], settings: Settings) -> list[Row]:
    """Make the rows of one implementation from its turns, of which the first has all that is measured once."""
    first, timed = turns[0], [turn.timed for turn in turns if turn.timed]
    wrong = why_wrong(first.errors, settings) if first.errors else ""
    rows = [
        {"impl": name, "measures": "check", **_outcome(wrong if name == impl else ""), **asdict(errors)}
        for name, errors in first.errors.items()
    ]
    if wrong:
        return [{"impl": impl, **WHOLE_STEP, **_outcome(wrong)}, *rows]
    rows += [{**row, "impl": impl} for row in _time_rows(timed, first)]
    rows += [{"impl": impl, "measures": "budget", "status": "ok", **item} for item in first.budget]
    rows += _fusion_rows(impl, first, timed[0])
    if first.losses:
        falls = first.losses[-1] < first.losses[0]
        reason = "" if falls else f"the loss does not fall: {first.losses[0]:.5g}, then {first.losses[-1]:.5g}"
        rows.append({"impl": impl, "measures": "descent", **_outcome(reason), "losses": first.losses})
    return rows


def _outcome(wrong: str) -> Row:
    return {"status": "wrong", "reason": wrong} if wrong else {"status": "ok"}


def _time_rows(timed: list[Timed], first: Turn) -> list[Row]:
    """Pool the samples of all turns."""
    rows = step_rows([turn.sampling for turn in timed], first.busy)
    return [{"measures": "time", **row, **(_of_whole_step(timed) if _is_whole(row) else {})} for row in rows]


def _is_whole(row: Row) -> bool:
    return all(row[name] == WHOLE_STEP[name] for name in ("phase", "clock"))


def _of_whole_step(timed: list[Timed]) -> Row:
    peaks = [turn.peak_bytes for turn in timed if turn.peak_bytes is not None]
    return {
        "first_step_ms": timed[0].first_step_ms,
        "measured_peak_tflops_per_s": timed[0].measured_peak_tflops_per_s,
        "peak_bytes": max(peaks, default=None),
        **_kept(timed[0].keeping),
    }


def _kept(keeping: Keeping) -> Row:
    memory = {"needs_bytes": keeping.needs_bytes, "has_bytes": keeping.has_bytes}
    if not keeping.levels:
        return memory
    return memory | {column: keeping.levels.count(level) for level, column in KEEPING_COLUMNS.items()}


def _fusion_rows(impl: str, first: Turn, timed: Timed) -> list[Row]:
    """Return one row per fusion; the last one's step is that which was timed with all of them."""
    if not first.fusions:
        return []
    step_ms = median(timed.sampling.timings[STEP].host_ms)
    measured = [asdict(fusion) for fusion in first.fusions]
    measured.append({"fusion": "kept_products", "step_ms": step_ms, "peak_bytes": timed.peak_bytes})
    return [{"impl": impl, "measures": "fusion", "status": "ok", **fusion} for fusion in measured]
