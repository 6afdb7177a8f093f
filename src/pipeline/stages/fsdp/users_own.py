"""FSDP wrappers of the user's own in an fsdp cell: checked alone, then timed in turn with the others."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.cells.on_ranks import ranks_on
from pipeline.stages.fsdp.cell import IMPLS, WHOLE_STEP, Cell, Settings
from pipeline.stages.fsdp.measure import Row, measure_in_ranks
from pipeline.stages.fsdp.ways import compute_dtype_of
from pipeline.subjects.checking import Processes, measure_survivors, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.training_check import check_fsdp


def measure_with(subjects: Sequence[Subject], cell: Cell, settings: Settings) -> list[Row]:
    """Return the rows of a cell with the user's own wrappers; one that fails costs its own rows."""
    processes = Processes(cell.world_size, *ranks_on(), settings.check_timeout_s)
    verdicts = {subject: verdict(check_fsdp, subject, processes, compute_dtype_of(cell)) for subject in subjects}

    def measure(left: Sequence[Subject], mark: Path) -> list[Row]:
        return measure_in_ranks([*IMPLS, *(subject.name for subject in left)], cell, settings, left, mark)

    rows, out = measure_survivors(measure, [subject for subject in subjects if verdicts[subject].status == "ok"])
    notes = {subject.name: found.reason for subject, found in verdicts.items() if found.status == "ok" and found.reason}
    rows = [_with_note(row, notes[row["impl"]]) if row["impl"] in notes else row for row in rows]
    failed = {subject: found for subject, found in (verdicts | out).items() if found.status != "ok"}
    return rows + [{"impl": subject.name, **WHOLE_STEP, **found.outcome} for subject, found in failed.items()]


def _with_note(row: Row, note: str) -> Row:
    return row | {"reason": "; ".join(filter(None, (row.get("reason"), note)))}
