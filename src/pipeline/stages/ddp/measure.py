"""Measure a ddp cell: the training step of every variant in the same ranks, by phase and clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cells.on_ranks import measure_on_ranks, ranks_on
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.stages.ddp.cell import (
    CAPTURED_STEP,
    PROFILER,
    SUBJECTS,
    VARIANTS,
    WHOLE_STEP,
    Cell,
    Settings,
    Variant,
    variant_key,
)
from pipeline.stages.ddp.ranks import Result, measure_variants

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return the rows of all variants; they take turns in the same ranks unless memory runs out.

    Wrappers of the user's own are checked first; those that pass take turns with the others.
    """
    with stopwatch.measuring():
        if subjects:
            from pipeline.stages.ddp.users_own import measure_with

            return measure_with(subjects, cell, settings)
        return measure_in_ranks(VARIANTS, cell, settings)


def measure_in_ranks(
    variants: Sequence[Variant],
    cell: Cell,
    settings: Settings,
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> list[Row]:
    """Return the rows of these variants; subjects and mark as for `measure_variants`."""
    backend, _ = ranks_on()
    results = measure_on_ranks(measure_variants, cell, settings, variants, subjects, mark)
    return [row for variant, result in results.items() for row in rows_of(variant, result, cell, backend)]


def rows_of(variant: Variant, result: Result | MemoryError, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one variant: a row per phase and clock, and one for the captured step."""
    key = variant_key(variant)
    if isinstance(result, MemoryError):
        return [{**key, **WHOLE_STEP, "status": "oom", "reason": str(result)}]
    differences = result.differences
    complaint = differences.complaint(cell.precision, same_gradients=cell.world_size == 2)  # else sums have an order
    if complaint and variant.impl not in SUBJECTS.apart:
        return [{**key, **WHOLE_STEP, "status": "wrong", "reason": complaint}]
    shared: Row = {
        **key,
        "backend": backend,
        "peak_bytes": result.peak_bytes,
        "gradient_bytes": result.gradient_bytes,
        "all_reduces": result.all_reduces,
        "all_reduce_bytes": result.all_reduce_bytes,
        "rank_difference": differences.between_ranks,
        "variant_difference": differences.from_reference,
        "weight_tolerance": TOLERANCE[cell.precision],
        "pinned_core": result.pinned_core,
    }
    rows = [{**shared, **row} for row in step_rows(result.samplings, result.busy)]
    if result.lanes is not None:
        step = {"phase": CAPTURED_STEP, "clock": PROFILER, "status": "ok"}
        rows.append({**key, **step, **result.lanes.columns()})
    return rows
