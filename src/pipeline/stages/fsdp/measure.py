"""Measure an fsdp cell: memory by kind, bytes sent and step time of each way to train, in the same ranks."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cells.on_ranks import measure_on_ranks, ranks_on
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.stages.fsdp.cell import COLLECTIVES, IMPLS, WHOLE_STEP, Cell, Settings
from pipeline.stages.fsdp.ranks import Result, measure_ways

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

Row = dict[str, Any]
# Of NCCL's kernels and gloo's ranges.
PATTERNS = {"gather": "all_?gather", "scatter": "reduce_?scatter"}


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return rows of times, memory by kind, bytes by collective and the captured step of each way.

    FSDP wrappers of the user's own are checked first; those that pass take turns with the others.
    """
    with stopwatch.measuring():
        if subjects:
            from pipeline.stages.fsdp.users_own import measure_with

            return measure_with(subjects, cell, settings)
        return measure_in_ranks(IMPLS, cell, settings)


def measure_in_ranks(
    impls: Sequence[str],
    cell: Cell,
    settings: Settings,
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> list[Row]:
    """Return the rows of these ways; subjects and mark as for `measure_ways`."""
    backend, _ = ranks_on()
    results = measure_on_ranks(measure_ways, cell, settings, impls, subjects, mark)
    return [row for impl, result in results.items() for row in rows_of(impl, result, cell, backend)]


def rows_of(impl: str, result: Result | MemoryError, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one way to train."""
    if isinstance(result, MemoryError):
        return [{"impl": impl, **WHOLE_STEP, "status": "oom", "reason": str(result)}]
    complaint = result.differences.complaint(cell.precision)
    if complaint:
        return [{"impl": impl, **WHOLE_STEP, "status": "wrong", "reason": complaint}]
    rows = [*_time_rows(result), *_memory_rows(result), *_traffic_rows(result)]
    if result.lanes is not None:
        rows.append({"measures": "capture", "status": "ok", **result.lanes.columns_by_collective(PATTERNS)})
    return [{"impl": impl, "backend": backend, **row} for row in rows]


def _time_rows(result: Result) -> list[Row]:
    shared = {
        "measures": "time",
        "loss": result.loss,
        "rank_difference": result.differences.between_ranks,
        "weight_share": result.differences.share,
        "pinned_core": result.pinned_core,
    }
    return [{**shared, **row} for row in step_rows(result.samplings, result.busy)]


def _memory_rows(result: Result) -> list[Row]:
    return [
        {"measures": "memory", "kind": kind, "status": "ok", "measured_bytes": size}
        for kind, size in result.memory.items()
    ]


def _traffic_rows(result: Result) -> list[Row]:
    """Add up the payloads of a step's collectives."""
    calls = Counter(call.name for call in result.collectives)
    payloads: Counter[str] = Counter()
    for call in result.collectives:
        payloads[call.name] += call.payload_bytes
    return [
        {
            "measures": "traffic",
            "collective": name,
            "status": "ok",
            "calls": calls[name],
            "measured_bytes": payloads[name],
        }
        for name in COLLECTIVES
    ]
