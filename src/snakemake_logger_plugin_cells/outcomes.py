"""The outcomes of the cells that a run measured: problems as they appear, and a summary at the end."""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.cells.record import has_failed, read_record
from pipeline.cells.rows import STATUSES, WITH_VALUES
from pipeline.cells.tabulate import outcome
from pipeline.errors import UserError
from pipeline.registry import stages

# Reasons for cells without values that the end of a run names; results/<stage>/cells.csv has all.
MOST_REASONS = 5


class Outcomes:
    """Counts of measured cells by outcome and by reason, and of the user's own implementations by name."""

    def __init__(self) -> None:
        self._cells: Counter[str] = Counter()
        self._without_values: Counter[str] = Counter()
        self._own: Counter[str] = Counter()
        self._wrong: Counter[str] = Counter()
        self._on_busy_host = 0

    def add(self, output: Sequence[str]) -> list[str]:
        """Count the cell whose record is among these files, and return the lines to print about it now."""
        for path in output:
            with contextlib.suppress(UserError):  # not a record, such as the folder of its files
                record = read_record(Path(path), stages())
                return [*self._disturbances_of(record), *self._outcome_of(record), *self._wrong_of(record)]
        return []

    def summary(self) -> list[str]:
        """Return how many cells have which outcome, why some have no values, and which of the user's own are wrong."""
        if not self._cells:
            return []
        counts = [f"{self._cells[status]} {status}" for status in STATUSES if self._cells[status]]
        reasons = [f"{_cells(count)} {why}" for why, count in self._without_values.most_common(MOST_REASONS)]
        if (more := len(self._without_values) - MOST_REASONS) > 0:
            reasons.append(f"{more} more {'reasons' if more > 1 else 'reason'}: see results/<stage>/cells.csv")
        wrong = [f"your {name} is wrong in {count} of {_cells(self._own[name])}" for name, count in self._wrong.items()]
        busy = f"{_cells(self._on_busy_host)} measured on a busy host: see host_busy in results/<stage>/cells.csv"
        lines = [f"measured {_cells(self._cells.total())}: {', '.join(counts)}", *reasons, *wrong]
        return [*lines, *([busy] if self._on_busy_host else [])]

    def _disturbances_of(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Count a cell that was measured on a busy host; say how busy for the first one only."""
        host = record.get("host", {})
        if not host.get("busy"):
            return
        self._on_busy_host += 1
        if self._on_busy_host == 1:
            used = f"other processes used {host['others_cores']:.1f} of {host['cores']:g} cores"
            yield f"[measured on a busy host: {used}]"

    def _outcome_of(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Count a cell, and say why it has no values: each time if it failed, else once per reason."""
        found = outcome(record["rows"], stages()[record["stage"]].row_types)
        self._cells[found["status"]] += 1
        if found["status"] in WITH_VALUES:
            return
        if has_failed(record):
            yield f"[failed: {found['reason']}, see {record['log']}]"
            return
        why = f"of {record['stage']} {found['status']}: {found['reason']}"
        if why not in self._without_values:
            yield f"[{record['stage']}: nothing measured: {found['reason']}]"
        self._without_values[why] += 1

    def _wrong_of(self, record: Mapping[str, Any]) -> Iterator[str]:
        """Count the user's own implementations in a cell; the first time one is wrong, say why."""
        for name in (subject["name"] for subject in record.get("subjects", ())):
            self._own[name] += 1
            rows = [row for row in record["rows"] if row["status"] == "wrong" and row.get("impl") == name]
            if not rows:
                continue
            if name not in self._wrong:
                yield f"[your {name} is wrong: {rows[0]['reason']}]"
            self._wrong[name] += 1


def _cells(count: int) -> str:
    return f"{count} cell{'s' if count != 1 else ''}"
