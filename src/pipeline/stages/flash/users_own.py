"""Attention of the user's own in a flash cell: checked alone, then timed in turn with the others.

What the small problems of the check do not show, the errors of the cell's own problem may: one far off is wrong too.

Where heads of queries share keys and values it is skipped: a function of (q, k, v, is_causal) does not say whether it
knows of them, and copies made for it would count in its time.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.flash.cell import GROUP_AXIS, PHASES, Cell, Settings
from pipeline.stages.flash.implementations import users_own
from pipeline.stages.flash.measure import TORCH_DTYPES, Row, measure_together
from pipeline.subjects.attention_check import QUANTITIES, TF32_EPS, attention_of, check_attention
from pipeline.subjects.checking import Processes, Verdict, measure_survivors, verdict
from pipeline.subjects.marks import quick_notes
from pipeline.subjects.naming import Subject

# Of a result's L2 norm, in units of eps, TF32's in fp32. Right implementations were off by one at most, also at 65,536
# keys; a kernel that a longer problem breaks is off by much more.
FAR_OFF = 16
NO_GQA = f"implementations of your own are measured where {GROUP_AXIS} is 1"


def measure_with(subjects: Sequence[Subject], cell: Cell, settings: Settings) -> list[Row]:
    """Return the rows of a cell with the user's own implementations; one that fails costs its own rows."""
    if cell.shape.has_shared_keys:
        skipped = Verdict("skipped", NO_GQA)
        rows = measure_together(cell, settings, Stopwatch(), {})
        return rows + [row for subject in subjects for row in _failed_rows(subject, skipped)]
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    checked = Processes(1, "gloo", device_type, settings.check_timeout_s)
    problem = (TORCH_DTYPES[cell.dtype], cell.head_dim, cell.is_causal)
    verdicts = {subject: verdict(check_attention, subject, checked, *problem) for subject in subjects}
    ways = {subject: found.way for subject, found in verdicts.items() if found.status == "ok"}

    def measure(left: Sequence[Subject], mark: Path) -> list[Row]:
        measured = Processes(1, "gloo", device_type, settings.timeout_s)
        return measured.run(_measure, cell, settings, [(subject, ways[subject]) for subject in left], mark)

    rows, out = measure_survivors(measure, list(ways))
    out |= {subject: Verdict("wrong", reason) for subject in ways if (reason := _far_off(subject, cell, rows))}
    rows = [row for row in rows if row["impl"] not in {subject.name for subject in out}]
    return rows + [row for subject, found in (verdicts | out).items() for row in _failed_rows(subject, found)]


def _measure(
    _context: RankContext, cell: Cell, settings: Settings, own: Sequence[tuple[Subject, str]], mark: Path
) -> list[Row]:
    with quick_notes(mark) as note:
        built = {}
        for number, (subject, way) in enumerate(own):
            note(number)
            attend = attention_of(subject, way, cell.is_causal)
            built[subject.name] = users_own(attend, partial(note, number))
        return measure_together(cell, settings, Stopwatch(), built)


def _far_off(subject: Subject, cell: Cell, rows: Sequence[Row]) -> str | None:
    """Say which result of a subject is far off at the cell's own problem, or NaN; None where none is."""
    limit = FAR_OFF * max(torch.finfo(TORCH_DTYPES[cell.dtype]).eps, TF32_EPS)
    for row in (row for row in rows if row["impl"] == subject.name):
        for quantity in QUANTITIES:
            error = row.get(f"{quantity}_rel_error", 0.0)
            if not error <= limit:  # nor where it is NaN
                return (
                    f"{quantity} has a relative error of {error:.2g} at length {cell.seq_len}, allowed is {limit:.2g}; "
                    "at the short lengths of the check it was right"
                )
    return None


def _failed_rows(subject: Subject, found: Verdict) -> list[Row]:
    if found.status == "ok":
        return []
    return [{"impl": subject.name, "phase": phase, **found.outcome} for phase in PHASES]
