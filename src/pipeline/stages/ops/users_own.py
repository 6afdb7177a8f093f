"""Operations of the user's own in an ops cell: checked alone, then timed in turn with the others."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.ops.cell import Cell, Settings
from pipeline.stages.ops.together import TORCH_DTYPES, Row, measure_together
from pipeline.subjects.checking import Processes, Verdict
from pipeline.subjects.measuring import measure_with
from pipeline.subjects.naming import Subject
from pipeline.subjects.operation_check import check_operation, function_of
from pipeline.subjects.turns import Turns


def measure_beside(subjects: Sequence[Subject], cell: Cell, settings: Settings) -> list[Row]:
    """Return the rows of a cell with the user's own implementations; one that fails costs its own rows."""
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    checked, measured = (
        Processes(1, "gloo", device_type, limit_s) for limit_s in (settings.check_timeout_s, settings.timeout_s)
    )

    def measure(left: Mapping[Subject, Verdict], mark: Path) -> list[Row]:
        return measured.run(_measure, cell, settings, list(left), mark)

    keys = [{"phase": phase} for phase in cell.phases]
    return measure_with(subjects, (check_operation, TORCH_DTYPES[cell.dtype]), checked, measure, keys)


def _measure(
    _context: RankContext, cell: Cell, settings: Settings, subjects: Sequence[Subject], mark: Path
) -> list[Row]:
    turns, own = Turns(subjects, mark), dict[str, Callable[[], Any]]()
    for subject in subjects:
        with turns.of(subject.name):
            function = function_of(subject)
        own[subject.name] = partial(lambda built: built, function)
    return measure_together(cell, settings, Stopwatch(), own, turns.of)
