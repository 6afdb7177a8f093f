"""Write tables whose columns have a header and a format; an outcome replaces a missing value."""

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

MOST_ROWS = 12
OUTCOME_WORDS = {"oom": "OOM", "skipped": "skipped", "unstable": "unstable", "wrong": "wrong", "failed": "failed"}
NOTHING = "–"
LEFT_ALIGNED: tuple[Form, ...] = (text, code)
Column = tuple[str, str, Form]
Columns = list[Column]
# Headings of columns, by the beginning of their names; other columns are headed by their names.
HEADS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Table:
    """A table of a section; `name` is unique in the section.

    columns: header, column of `rows`, and how its values are written. A missing value shows the outcome of its row,
    from the column `status`; for a column such as `median_ms_peer`, from `status_peer`. `~` marks the values of an
    unstable row in columns of times and rates. all_rows: write every row, however many. across: a column whose values
    become headers: columns before it name a row, columns after it share a cell, in order.
    hint: how to see the rows left out.
    """

    name: str
    caption: str
    rows: pd.DataFrame
    columns: Sequence[Column]
    all_rows: bool = False
    across: str | None = None
    hint: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether it has no rows."""
        return self.rows.empty

    def markdown(self) -> Markdown:
        """Write the table as Markdown under its caption, if it has one."""
        shown = self.rows if self.all_rows else self.rows.head(MOST_ROWS)
        names = {name for _, name, _ in self.columns}
        needed = [name for name in shown if name in names or str(name).startswith("status")]
        lines = [[_cell(row, name, form) for _, name, form in self.columns] for row in shown[needed].to_dict("records")]
        heads: list[str] = [Markdown.escape(head) for head, _, _ in self.columns]
        rule = [":--" if form in LEFT_ALIGNED else "--:" for _, _, form in self.columns]
        if self.across is not None:
            place = [name for _, name, _ in self.columns].index(self.across)
            _, name, form = self.columns[place]
            order = shown[name].drop_duplicates()
            order = order.sort_values() if is_numeric_dtype(order) or order.dtype == "category" else order
            values: list[str] = [Markdown.escape(form(value)) for value in order]
            lines = _pivoted(lines, place, values)
            heads, rule = [*heads[:place], *(f"{heads[place]} {value}".strip() for value in values)], rule[:place]
            rule += ["--:"] * len(values)
        written = "\n".join("| " + " | ".join(line) + " |" for line in [heads, rule, *lines])
        more = len(self.rows) - len(shown)
        hint = f" ({Markdown.escape(self.hint)})" if self.hint else ""
        rest = f"\n\nRows left out: {more:,}{hint}." if more else ""
        caption = f"{Markdown.escape(self.caption)}\n\n" if self.caption else ""
        return Markdown(f"{caption}{written}{rest}")


def columns_of(rows: pd.DataFrame, names: str) -> Columns:
    """Return columns of rows, named in one string: `size median_ms reason:code`.

    A form after the colon is one of `formats.FORMS`; without one it follows from the values or the unit in the name.
    """
    specs = [name.partition(":")[::2] for name in names.split()]
    return [(heading(name), name, FORMS[form] if form else _form(name, rows.get(name, ()))) for name, form in specs]


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


def _pivoted(lines: list[list[str]], place: int, values: list[str]) -> list[list[str]]:
    """Pivot lines: one line per name (the cells before `place`), with one cell for each value at `place`."""
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for line in lines:
        found = line[place + 1 :]
        outcomes = [each for each in found if each in OUTCOME_WORDS.values()]
        without_value = len(outcomes) + found.count(NOTHING) == len(found)
        shared = " / ".join(found) if not without_value else outcomes[0] if outcomes else NOTHING
        cells.setdefault(tuple(line[:place]), {})[line[place]] = shared
    return [[*name, *(of_name.get(value, NOTHING) for value in values)] for name, of_name in cells.items()]


def _cell(row: dict[Any, Any], name: str, form: Form) -> str:
    value, status = row.get(name), _status(row, name)
    if value is None or (not isinstance(value, list) and pd.isna(value)):
        return NOTHING if form in LEFT_ALIGNED else OUTCOME_WORDS.get(status, NOTHING).replace("unstable", NOTHING)
    return (mark(status) if _is_noisy(name) else Markdown()) + Markdown.escape(form(value))


def _status(row: dict[Any, Any], name: str) -> str:
    """Return the outcome for a column, from the status column that shares the longest suffix with its name."""
    suffixes = [key.removeprefix("status") for key in row if isinstance(key, str) and key.startswith("status")]
    suffix = max((each for each in suffixes if name.endswith(each)), key=len, default="")
    return str(row.get(f"status{suffix}", "ok"))


def _is_noisy(name: str) -> bool:
    """Tell whether a column holds times or values derived from times."""
    return any(f"_{words}_" in f"_{name}_" for words in ("ms", "per_s", "mfu", "ratio", "gbps", "share_pct", "usd"))
