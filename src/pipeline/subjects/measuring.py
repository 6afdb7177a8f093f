"""Measure implementations of the user's own beside the pipeline's: checked first, and without those that fail."""

from collections.abc import Callable, Mapping, Sequence
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
    """Return the rows of a cell with implementations of the user's own; one that fails costs its own rows.

    check: the function that checks and its arguments, for `verdict` with these processes. measure: takes the verdicts
    on those that passed and have not ended it, and the path of the file that is to tell who ran last and what they
    changed for all; `impl` in its rows names the subject. keys: of the rows of one that fails.
    """
    verdicts = {subject: verdict(check[0], subject, processes, *check[1:]) for subject in subjects}

    def measure_and_tell(left: Sequence[Subject], mark: Path) -> list[Row]:
        rows = measure({subject: verdicts[subject] for subject in left}, mark)
        changes = {left[number].name: _undone(words) for number, words in noted_changes(mark).items()}
        return [_saying(row, changes.get(row.get("impl", ""))) for row in rows]

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
    """Return the rows of a cell of one process; subjects, check and keys as for `measure_with`.

    function: makes the rows in that process from its context, the verdicts on those that passed, their turns, and what
    is given. settings: have `check_timeout_s` and `timeout_s`.
    """
    device_type = "cuda" if torch.cuda.is_available() else "cpu"
    checked, measured = (
        Processes(1, "gloo", device_type, limit_s) for limit_s in (settings.check_timeout_s, settings.timeout_s)
    )

    def measure(left: Verdicts, mark: Path) -> list[Row]:
        return measured.run(_with_turns, function, dict(left), mark, *given)

    return measure_with(subjects, check, checked, measure, keys)


def _with_turns(
    context: RankContext, function: Callable[..., list[Row]], own: Verdicts, mark: Path, *given: Any
) -> list[Row]:
    return function(context, own, Turns(list(own), mark), *given)


def _undone(changes: Sequence[str]) -> str:
    return f"it set {', '.join(changes)}, which was undone: all run alike" if changes else ""


def _saying(row: Row, words: str | None) -> Row:
    """Add words to a row's reason."""
    return row | {"reason": "; ".join(filter(None, [row.get("reason"), words]))} if words else row
