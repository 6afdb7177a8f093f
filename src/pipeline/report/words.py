"""Fill in the hand-written texts of the Markdown file beside a module: `report.md` beside `report.py`.

The file has a note and, below it, definitions: a line `[name]: words`, continued by indented lines. A name is that of a
sentence, a table (its caption) or a chart (its title). `[.column]` is the heading of a column, the title of its axis
and its name on hover; `[part.column]` is the same for one table or chart only. Fields such as `{row[median_ms]:ms}` are
filled with values.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import Filling
from pipeline.report.markup import Markdown, unwrapped
from pipeline.report.section import say
from pipeline.report.table import Table, columns_of, filled, heading

DEFINITION = re.compile(r"^\[([\w.]+)\]:(.*(?:\n +\S.*)*)\n?", re.MULTILINE)


class Words:
    """The note and the definitions of the Markdown file with the name of a module."""

    def __init__(self, module: str) -> None:
        text = Path(module).with_suffix(".md").read_text(encoding="utf-8")
        self.note = Markdown(unwrapped(DEFINITION.sub("", text).strip()))
        self.defined = {name: " ".join(words.split()) for name, words in DEFINITION.findall(text)}

    def say(self, name: str, /, **values: Any) -> Markdown:
        """Return a sentence as Markdown; raises KeyError if it or a value is missing."""
        return say(self.defined[name], **values)

    def table(
        self,
        name: str,
        rows: pd.DataFrame,
        names: str,
        /,
        *,
        across: str | None = None,
        all_rows: bool = True,
        only_filled: bool = False,
        **values: Any,
    ) -> Table:
        """Return a table with its caption; names: its columns, as `table.columns_of` takes them.

        across: the column whose values become headers. only_filled: leave out columns without any value. Words are
        filled with `values`, then with those of the first row.
        """
        columns = [
            (self._heading(name, column, rows, values), column, form) for _, column, form in columns_of(rows, names)
        ]
        shown = filled(rows, columns) if only_filled else columns
        return Table(name, self._fill(name, rows, values), rows, shown, all_rows, across)

    def chart(
        self,
        name: str,
        rows: pd.DataFrame,
        mark: Any,
        x: str | Axis,
        y: str | Axis,
        colour: str = "",
        *,
        hover: str = "",
        values: Mapping[str, Any] = {},
        **fields: Any,
    ) -> Chart:
        """Return a chart with its titles; hover: columns to show on hover; fields: further fields of Chart.

        An axis without a definition has no title.
        """
        axes = (Axis(each) if isinstance(each, str) else each for each in (x, y))
        x, y = (replace(axis, title=self._heading(name, axis.column, rows, values, "")) for axis in axes)
        columns = {self._heading(name, column, rows, values): column for column in hover.split()}
        return Chart(name, self._fill(name, rows, values), rows, mark, x, y, colour, hover=columns, **fields)

    def _heading(
        self, part: str, column: str, rows: pd.DataFrame, values: Mapping[str, Any], default: str | None = None
    ) -> str:
        known = next((name for name in (f"{part}.{column}", f".{column}") if name in self.defined), None)
        return self._fill(known, rows, values) if known else heading(column) if default is None else default

    def _fill(self, name: str, rows: pd.DataFrame, values: Mapping[str, Any]) -> str:
        """Return words with values in their fields; empty if there are no rows."""
        return Filling().vformat(self.defined[name], (), {**rows.iloc[0], **values}) if len(rows) else ""
