"""Measure a sharding cell: memory by kind, bytes sent and step time with each optimizer, in the same ranks."""

import math
from collections.abc import Sequence

from pipeline.formulas.training_state import KINDS
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.stages.sharding import prediction
from pipeline.stages.sharding.cell import ALLOCATOR_KINDS, COLLECTIVES, PEAKS, WHOLE_STEP, Cell, Settings
from pipeline.stages.sharding.prediction import Share
from pipeline.stages.sharding.ways import WAYS, note_memory, own_ways
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import measure_cell, time_rows, traffic_rows
from pipeline.ways.way import Experiment, Result, Row, Way


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence[Subject] = ()) -> list[Row]:
    """Return rows of times, of memory by moment and kind, and of bytes by collective for each optimizer."""
    return measure_cell(EXPERIMENT, cell, settings, stopwatch, subjects)


def rows(way: Way, result: Result, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one optimizer."""
    off, tolerance = result.differences.from_reference, TOLERANCE[cell.precision]
    found = [
        *time_rows(result, measures="time", weight_difference=off, weight_tolerance=tolerance),
        *_memory_rows(way, result, cell.world_size),
        *traffic_rows(result.collectives, COLLECTIVES),
    ]
    return [{"backend": backend, **row} for row in found]


def _memory_rows(way: Way, result: Result, world_size: int) -> list[Row]:
    """Pair counted bytes with predicted bytes; how the user's own shares them out is not known."""
    predicted = {} if way.is_own else _predicted(result, _share(way.name, result.parameter_bytes, world_size))
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


EXPERIMENT = Experiment(
    WAYS,
    first_turn=(
        notes.note_parameters,
        note_memory,
        notes.note_traffic,
        notes.time_steps,
        notes.compare_weights,
    ),
    whole_step=WHOLE_STEP,
    rows=rows,
    own_ways=own_ways,
    alike_up_to=math.inf,
    make_room=make_room,
)
