"""Measure implementations of the user's own beside the pipeline's: checked first, and without those that fail."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.subjects.checking import Processes, Verdict, survivors, verdict
from pipeline.subjects.naming import Subject
from pipeline.subjects.turns import noted_changes

Row = dict[str, Any]
Verdicts = Mapping[Subject, Verdict]


def measure_with(
    subjects: Sequence[Subject],
    check: tuple[Any, ...],
    processes: Processes,
    measure: Callable[[Verdicts, Path], list[Row]],
    keys: Sequence[Mapping[str, Any]],
    judge: Callable[[Subject, list[Row]], Verdict | None] = lambda _subject, _rows: None,
) -> list[Row]:
    """Return the rows of a cell with implementations of the user's own; one that fails costs its own rows.

    check: the function that checks and its arguments, for `verdict` with these processes. measure: takes the verdicts
    on those that passed and have not ended it, and the path of the file that is to tell who ran last and what they
    changed for all; `impl` in its rows names the subject. keys: of the rows of one that fails. judge: returns a verdict
    on one that its rows show to be wrong.
    """
    verdicts = {subject: verdict(check[0], subject, processes, *check[1:]) for subject in subjects}

    def measure_and_tell(left: Sequence[Subject], mark: Path) -> list[Row]:
        rows = measure({subject: verdicts[subject] for subject in left}, mark)
        changes = {left[number].name: _undone(words) for number, words in noted_changes(mark).items()}
        return [_saying(row, changes.get(row.get("impl", ""))) for row in rows]

    rows, out = survivors(measure_and_tell, [subject for subject, found in verdicts.items() if found.status == "ok"])
    verdicts |= out
    right = [subject for subject, found in verdicts.items() if found.status == "ok"]
    verdicts |= {subject: found for subject in right if (found := judge(subject, rows))}
    failed = {subject: found for subject, found in verdicts.items() if found.status != "ok"}
    notes = {subject.name: found.reason for subject, found in verdicts.items() if subject not in failed}
    left_out = {subject.name for subject in failed}
    return [
        *(_saying(row, notes.get(row.get("impl", ""))) for row in rows if row.get("impl") not in left_out),
        *({"impl": subject.name, **key, **found.outcome} for subject, found in failed.items() for key in keys),
    ]


def _undone(changes: Sequence[str]) -> str:
    return f"it set {', '.join(changes)}, which was undone: all run alike" if changes else ""


def _saying(row: Row, words: str | None) -> Row:
    """Add words to a row's reason."""
    return row | {"reason": "; ".join(filter(None, [row.get("reason"), words]))} if words else row
