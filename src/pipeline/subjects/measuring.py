"""Measure the user's implementations beside the pipeline's: check them first, and leave out those that fail."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.checking import Processes, Verdict, survivors, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import Turns, noted_changes

Row = dict[str, Any]
Verdicts = Mapping[Subject, Verdict]


def measure_with(
    subjects: Sequence[Subject],
    check: tuple[Any, ...],
    processes: Processes,
    measure: Callable[[Verdicts, Path], list[Row]],
    keys: Sequence[Mapping[str, Any]],
) -> list[Row]:
    """Return the rows of a cell with the user's implementations; one that fails loses only its own values.

    check: the checking function and its arguments, for `verdict`. measure: takes the verdicts on subjects that passed
    and have not crashed it, and the mark of `turns`; returns rows whose `impl` names the subject. keys: the key columns
    of each row of a subject that fails.
    """
    verdicts = {subject: verdict(check[0], subject, processes, *check[1:]) for subject in subjects}

    def measure_and_tell(left: Sequence[Subject], mark: Path) -> list[Row]:
        rows = measure({subject: verdicts[subject] for subject in left}, mark)
        changes = {left[number].name: ", ".join(words) for number, words in noted_changes(mark).items()}
        told = {name: f"it set {words}, which was undone: all run alike" for name, words in changes.items()}
        return [_saying(row, told.get(row.get("impl", ""))) for row in rows]

    rows, out = survivors(measure_and_tell, [subject for subject, found in verdicts.items() if found.status == "ok"])
    verdicts |= out
    failed = {subject: found for subject, found in verdicts.items() if found.status != "ok"}
    notes = {subject.name: found.reason for subject, found in verdicts.items() if subject not in failed}
    left_out = {subject.name for subject in failed}
    return [
        *(_saying(row, notes.get(row.get("impl", ""))) for row in rows if row.get("impl") not in left_out),
        *({"impl": subject.name, **key, **found.outcome} for subject, found in failed.items() for key in keys),
    ]


def measure_in_turns(
    subjects: Sequence[Subject],
    check: tuple[Any, ...],
    function: Callable[..., list[Row]],
    given: tuple[Any, ...],
    settings: Any,
    keys: Sequence[Mapping[str, Any]],
) -> list[Row]:
    """Return the rows of a single-process cell, as `measure_with` does.

    function: makes the rows from its context, the verdicts on subjects that passed, their turns, and `given`.
    """
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    checked = Processes(1, "gloo", device_type, settings.check_timeout_s)

    def measure(left: Verdicts, mark: Path) -> list[Row]:
        return replace(checked, timeout_s=settings.timeout_s).run(_with_turns, function, dict(left), mark, *given)

    return measure_with(subjects, check, checked, measure, keys)


def _with_turns(
    context: RankContext, function: Callable[..., list[Row]], own: Verdicts, mark: Path, *given: Any
) -> list[Row]:
    return function(context, own, Turns(list(own), mark), *given)


def _saying(row: Row, words: str | None) -> Row:
    """Add words to a row's reason."""
    return row | {"reason": "; ".join(filter(None, [row.get("reason"), words]))} if words else row
