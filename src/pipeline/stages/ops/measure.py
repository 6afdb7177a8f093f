"""Measure an ops cell: all implementations in turn, those of the user's own among them."""

from collections.abc import Sequence

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.ops.cell import Cell, Settings
from pipeline.stages.ops.together import Row, measure_together
from pipeline.subjects.naming import Subject


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence[Subject] = ()) -> list[Row]:
    """Return a row for each implementation and phase; if one fails, the others are still measured.

    The user's own are checked first, and what passes is measured in a process that it may end.
    """
    if not subjects:
        return measure_together(cell, settings, stopwatch, {})
    from pipeline.stages.ops.users_own import measure_beside

    with stopwatch.measuring():
        return measure_beside(subjects, cell, settings)
