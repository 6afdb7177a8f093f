"""Write tables: a header, a column and a format each; an outcome stands in for a missing value."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from pipeline.report.formats import FORMS, Form, code, data_size, mark, number, percent, plain, text
from pipeline.report.markup import Markdown

MOST_ROWS, MOST_COLUMNS = 12, 10
OUTCOME_WORDS = {"oom": "OOM", "skipped": "skipped", "unstable": "unstable", "wrong": "wrong", "failed": "failed"}
NOTHING = "–"
TO_THE_LEFT: tuple[Form, ...] = (text, code)
Column = tuple[str, str, Form]
Columns = list[Column]
# Headings of columns, by how their names begin; others are headed by their names.
HEADS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Table:
    """A table of a section; `name` is unique in it.

    columns: header, column of `rows`, and how its values are written. What has no value shows the outcome of its row,
    by the column `status`; a column such as `median_ms_peer` has its own in `status_peer`. `~` leads the values of an
    unstable row in columns of times and rates. all_rows: every row is written, however many. across: a column whose
    values become headers: those before it name a row, those behind it share a cell, in their order.
    """

    name: str
    caption: str
    rows: pd.DataFrame
    columns: Sequence[Column]
    all_rows: bool = False
    across: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing would be seen."""
        return self.rows.empty

    def markdown(self) -> Markdown:
        """Write the table as Markdown under its caption, if it has one."""
        shown = self.rows if self.all_rows else self.rows.head(MOST_ROWS)
        names = {name for _, name, _ in self.columns}
        needed = [name for name in shown if name in names or str(name).startswith("status")]
        lines = [[_cell(row, name, form) for _, name, form in self.columns] for row in shown[needed].to_dict("records")]
        heads: list[str] = [Markdown.escape(head) for head, _, _ in self.columns]
        rule = [":--" if form in TO_THE_LEFT else "--:" for _, _, form in self.columns]
        if self.across is not None:
            place = [name for _, name, _ in self.columns].index(self.across)
            _, name, form = self.columns[place]
            order = shown[name].drop_duplicates()
            order = order.sort_values() if is_numeric_dtype(order) or order.dtype == "category" else order
            values: list[str] = [Markdown.escape(form(value)) for value in order]
            lines = _spread(lines, place, values)
            heads, rule = [*heads[:place], *(f"{heads[place]} {value}".strip() for value in values)], rule[:place]
            rule += ["--:"] * len(values)
        written = "\n".join("| " + " | ".join(line) + " |" for line in [heads, rule, *lines])
        more = len(self.rows) - len(shown)
        rest = f"\n\nRows left out: {more:,}." if more else ""
        caption = f"{Markdown.escape(self.caption)}\n\n" if self.caption else ""
        return Markdown(f"{caption}{written}{rest}")


def named(rows: pd.DataFrame, names: str) -> Columns:
    """Return columns of rows, named in one string: `size median_ms reason:code`.

    How values are written stands behind a name, one of `formats.FORMS`, or follows of the unit that the name ends with.
    """
    told = [name.partition(":")[::2] for name in names.split()]
    return [(heading(name), name, FORMS[form] if form else _form(name, rows.get(name, ()))) for name, form in told]


def heading(name: str) -> str:
    """Return the heading of a column that has none of its own."""
    known = max((each for each in HEADS if f"{name}_".startswith(f"{each}_")), key=len, default="")
    return HEADS[known] if known else re.sub(r"_(bytes|pct)\b", "", name).replace("_ms", ", ms").replace("_", " ")


def _form(name: str, values: Iterable[Any]) -> Form:
    if any(isinstance(value, str) for value in values):
        return text
    units = {"_ms": number, "_pct": percent, "_bytes": data_size}
    return next((form for unit, form in units.items() if f"{unit}_" in f"{name}_"), plain)


def filled(rows: pd.DataFrame, columns: Columns) -> Columns:
    """Keep the columns that have a value in any row: a machine without a GPU has no clock and no data sheet."""
    return [each for each in columns if each[1] in rows and rows[each[1]].notna().any()]


def _spread(lines: list[list[str]], place: int, values: list[str]) -> list[list[str]]:
    """Make a line of each name, which is the cells before `place`, and in it a cell of each value at `place`."""
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for line in lines:
        found = line[place + 1 :]
        outcomes = [each for each in found if each in OUTCOME_WORDS.values()]
        without_value = len(outcomes) + found.count(NOTHING) == len(found)
        shared = " / ".join(found) if not without_value else outcomes[0] if outcomes else NOTHING
        cells.setdefault(tuple(line[:place]), {})[line[place]] = shared
    return [[*name, *(own.get(value, NOTHING) for value in values)] for name, own in cells.items()]


def _cell(row: dict[Any, Any], name: str, form: Form) -> str:
    value, status = row.get(name), _status(row, name)
    if value is None or (not isinstance(value, list) and pd.isna(value)):
        return NOTHING if form in TO_THE_LEFT else OUTCOME_WORDS.get(status, NOTHING).replace("unstable", NOTHING)
    return (mark(status) if _is_noisy(name) else Markdown()) + Markdown.escape(form(value))


def _status(row: dict[Any, Any], name: str) -> str:
    """Return the outcome that a column's values have: that of the longest suffix that a status column shares."""
    suffixes = [key.removeprefix("status") for key in row if isinstance(key, str) and key.startswith("status")]
    suffix = max((each for each in suffixes if name.endswith(each)), key=len, default="")
    return str(row.get(f"status{suffix}", "ok"))


def _is_noisy(name: str) -> bool:
    """Tell whether a column holds times, or what is derived from them."""
    return any(f"_{words}_" in f"_{name}_" for words in ("ms", "per_s", "mfu", "ratio", "gbps", "share_pct", "usd"))
