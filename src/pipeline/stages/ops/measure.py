"""Measure an ops cell: all implementations in turn, including the user's own."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from pipeline.instruments.machine.peaks import bandwidth_to_measure, peak_to_measure
from pipeline.instruments.sampling.side_by_side import Row, SideBySide
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.ops import implementations
from pipeline.stages.ops.cell import Cell, Settings
from pipeline.stages.ops.problem import TORCH_DTYPES, OperationProblem

if TYPE_CHECKING:
    from pipeline.parallel.processes.starting import RankContext
    from pipeline.subjects.naming import Subject
    from pipeline.subjects.turns import Turns


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence["Subject"] = ()) -> list[Row]:
    """Return a row for each implementation and phase; if one fails, the others are still measured.

    The user's own are checked first; those that pass are measured with the rest in a process that they may crash.
    """
    with stopwatch.measuring():
        if not subjects:
            return _measure_together(cell, settings, {}, {})
        from pipeline.subjects.measuring import measure_in_turns
        from pipeline.subjects.operation_check import check_operation

        check, keys = (check_operation, TORCH_DTYPES[cell.dtype]), [{"phase": phase} for phase in cell.phases]
        return measure_in_turns(subjects, check, _measure_beside, (cell, settings), settings, keys)


def _measure_beside(
    _context: "RankContext", own: Collection["Subject"], turns: "Turns", cell: Cell, settings: Settings
) -> list[Row]:
    from pipeline.subjects.operation_check import function_of

    builds = {}
    for subject in own:
        with turns.of(subject.name):
            builds[subject.name] = partial(lambda built: built, function_of(subject))
    return _measure_together(cell, settings, builds, {name: partial(turns.of, name) for name in builds})


def _measure_together(
    cell: Cell,
    settings: Settings,
    own: Mapping[str, Callable[[], Any]],
    turns: Mapping[str, Callable[[], AbstractContextManager]],
) -> list[Row]:
    """Measure all in this process; own: the user's implementations by name; turns: the contexts that they run in."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    builds = {name: partial(implementations.build, name, cell.op, settings, device) for name in cell.impls}
    found = SideBySide(OperationProblem(cell, device), {**builds, **own}, settings, turns)
    timed = found.time()
    found.judge_again()
    # Measured only where no data sheet is known: the bandwidth, and for matrix products their peak.
    has_products = cell.op == "linear_cross_entropy"
    shared = {
        "measured_gb_per_s": bandwidth_to_measure(device),
        "measured_peak_tflops_per_s": peak_to_measure(device, cell.dtype) if has_products else None,
    }
    return found.rows(timed, lambda _key: shared)
