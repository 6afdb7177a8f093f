"""Measure a sharding cell: memory by kind, bytes sent and step time with each optimizer, in the same ranks."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cells.on_ranks import measure_on_ranks, ranks_on
from pipeline.formulas.training_state import KINDS
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.variants import step_rows
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.stages.sharding import prediction
from pipeline.stages.sharding.cell import ALLOCATOR_KINDS, COLLECTIVES, IMPLS, PEAKS, WHOLE_STEP, Cell, Settings
from pipeline.stages.sharding.prediction import Share
from pipeline.stages.sharding.ranks import Result, measure_optimizers

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

Row = dict[str, Any]


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return rows of times, of memory by moment and kind, and of bytes by collective for each optimizer.

    Optimizers of the user's own are checked first; those that pass take turns with the others.
    """
    with stopwatch.measuring():
        if subjects:
            from pipeline.stages.sharding.users_own import measure_with

            return measure_with(subjects, cell, settings)
        return measure_in_ranks(IMPLS, cell, settings)


def measure_in_ranks(
    impls: Sequence[str],
    cell: Cell,
    settings: Settings,
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> list[Row]:
    """Return the rows of these optimizers; subjects and mark as for `measure_optimizers`."""
    backend, _ = ranks_on()
    results = measure_on_ranks(measure_optimizers, cell, settings, impls, subjects, mark)
    return [row for impl, result in results.items() for row in rows_of(impl, result, cell, backend)]


def rows_of(impl: str, result: Result | MemoryError, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one optimizer."""
    if isinstance(result, MemoryError):
        return [{"impl": impl, **WHOLE_STEP, "status": "oom", "reason": str(result)}]
    complaint = result.differences.complaint(cell.precision, same_gradients=True)
    if complaint:
        return [{"impl": impl, **WHOLE_STEP, "status": "wrong", "reason": complaint}]
    rows = [
        *_time_rows(result, cell),
        *_memory_rows(impl, result, cell.world_size),
        *_traffic_rows(result),
    ]
    return [{"impl": impl, "backend": backend, **row} for row in rows]


def _time_rows(result: Result, cell: Cell) -> list[Row]:
    shared = {
        "measures": "time",
        "rank_difference": result.differences.between_ranks,
        "weight_difference": result.differences.from_reference,
        "weight_tolerance": TOLERANCE[cell.precision],
        "pinned_core": result.pinned_core,
    }
    return [{**shared, **row} for row in step_rows(result.samplings, result.busy)]


def _memory_rows(impl: str, result: Result, world_size: int) -> list[Row]:
    """Pair counted bytes with predicted bytes; how the user's own shares them out is not known."""
    predicted = _predicted(result, _share(impl, result.parameter_bytes, world_size)) if impl in IMPLS else {}
    return [
        {
            "measures": "memory",
            "moment": moment,
            "kind": kind,
            "status": "ok",
            "measured_bytes": int(size),
            "predicted_bytes": predicted.get((moment, kind)),
        }
        for (moment, kind), size in result.memory.items()
    ]


def _share(impl: str, parameter_bytes: list[int], world_size: int) -> Share:
    if impl == "adamw":
        return prediction.whole(parameter_bytes)
    return prediction.fullest_share(parameter_bytes, world_size)


def _predicted(result: Result, share: Share) -> dict[tuple[str, str], int]:
    """Predict bytes by moment and kind, except for the first peak of forward and backward, the basis of the later one.

    The allocator rounds requests up, so that one prediction serves for bytes requested and given out.
    """
    sizes = result.parameter_bytes
    on_gpu = ("initialised", "peak") in result.memory
    predicted: dict[tuple[str, str], int] = {}
    for moment in dict.fromkeys(moment for moment, _ in result.memory):
        kinds = prediction.kinds_bytes(sizes, share, moment, counters_on_device=not on_gpu)
        predicted |= {(moment, kind): kinds[kind] for kind in KINDS}
        predicted |= {(moment, total): sum(kinds.values()) for total in ALLOCATOR_KINDS}
    if on_gpu:
        predicted |= {("initialised", peak): sum(sizes) for peak in PEAKS}
        predicted |= {("first_after_step", peak): prediction.step_peak_bytes(sizes, share) for peak in PEAKS}
        predicted |= {("after_step", peak): prediction.step_peak_bytes(sizes, share) for peak in PEAKS}
        first = {peak: int(result.memory["first_before_step", peak]) for peak in PEAKS}
        predicted |= {("before_step", peak): prediction.backward_peak_bytes(first[peak], share) for peak in PEAKS}
    return predicted


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
