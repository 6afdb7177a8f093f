"""Measure a ddp cell: the training step of every variant in the same ranks, by phase and clock."""

from collections.abc import Sequence

from pipeline.instruments.profilers.collective_traffic import total_bytes
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.stages.ddp.cell import CAPTURED_STEP, PROFILER, WHOLE_STEP, Cell, Settings
from pipeline.stages.ddp.ways import WAYS, own_ways
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import measure_cell, time_rows
from pipeline.ways.way import Experiment, Result, Row, Way


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence[Subject] = ()) -> list[Row]:
    """Return the rows of all variants, and of wrappers of the user's own."""
    return measure_cell(EXPERIMENT, cell, settings, stopwatch, subjects)


def rows(way: Way, result: Result, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one variant: a row per phase and clock, and one for the captured step."""
    calls = [call for call in result.collectives if call.name == "allreduce"]
    times = time_rows(
        result,
        backend=backend,
        peak_bytes=result.memory.get("peak"),
        gradient_bytes=sum(result.parameter_bytes),
        all_reduces=len(calls),
        all_reduce_bytes=total_bytes(calls),
        variant_difference=result.differences.from_reference,
        weight_tolerance=TOLERANCE[cell.precision],
    )
    if result.lanes is None:
        return times
    return [*times, {"phase": CAPTURED_STEP, "clock": PROFILER, "status": "ok", **result.lanes.columns()}]


EXPERIMENT = Experiment(
    WAYS,
    first_turn=(
        notes.note_parameters,
        notes.time_steps,
        notes.note_peak,
        notes.compare_weights,  # also without communication: they must differ
        notes.note_traffic,
    ),
    whole_step=WHOLE_STEP,
    rows=rows,
    own_ways=own_ways,
    alike_up_to=2,  # on more ranks sums have an order
)
