"""Rows of any stage's tables: read, those with figures, in reading order, divided by each other."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.rows import WITH_FIGURES, RowTypes
from pipeline.errors import UserError
from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.report.markup import one_line
from pipeline.report.reasons import brief

# Which may look like numbers: the commit 62535e0, CUDA 12.10.
TEXTS = ("commit", "digest", *SOFTWARE)


def read_rows(table: Path) -> pd.DataFrame:
    """Read a table of cells, each text in it made one line, its reasons short enough to show.

    Raises UserError, one line, where it cannot be read, is no table or is cut off.
    """
    try:
        text = table.read_text(encoding="utf-8")
        # Words like "none" and "n/a" are values here: only an empty cell is missing.
        rows = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXTS, str))
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror}") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UserError(f"{table} is no table: {first_line}") from None
    if not text.endswith("\n"):
        raise UserError(f"{table} is cut off: its last line has no end")
    return readable(rows)


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as data for JSON: None where there is nothing, numbers to nine digits."""
    return json.loads(table.to_json(orient="records", double_precision=9))


def readable(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows fit to be shown: each text one line, reasons brief, and NaN wherever there is nothing."""
    shown = rows.where(rows.notna(), np.nan).infer_objects()
    for name in shown.select_dtypes(exclude=["number", "bool"]):
        shown[name] = pd.Series(map(_one_line, shown[name]), shown.index, dtype=object)
    if "reason" in shown:
        shown["reason"] = shown["reason"].map(brief, na_action="ignore").astype(object)
    return shown.copy()  # as few blocks, of which sections take rows again and again


def _one_line(value: Any) -> Any:
    if isinstance(value, list):
        return [_one_line(item) for item in value]
    return one_line(value) if isinstance(value, str) else value


def ok(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep rows that carry figures."""
    return rows[has_figures(rows["status"])]


def has_figures(status: pd.Series) -> pd.Series:
    """Tell which outcomes leave figures: those measured, the unstable ones among them."""
    return status.isin(WITH_FIGURES)


def known(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Keep rows that have something in each of these columns: none where there is no such column."""
    if not set(columns) <= set(rows):
        return rows.head(0)
    return rows[rows[list(columns)].notna().all(axis=1)]


def highest(rows: pd.DataFrame, quantity: str, by: str) -> dict[str, float]:
    """Return the highest figure of a quantity by the values of another column; nothing where no row has both."""
    found = known(rows, by, quantity)
    return {} if found.empty else found.groupby(by)[quantity].max().to_dict()


def complete(rows: pd.DataFrame, row_types: RowTypes) -> pd.DataFrame:
    """Return rows with the columns that a stage declares and none of them fills."""
    return rows.reindex(columns=list(dict.fromkeys([*rows.columns, *row_types.column_names()])))


def in_order(rows: pd.DataFrame, keys: list[str], orders: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Sort by these columns; the names of a column in `orders` as listed there, unknown ones after them."""
    return rows.sort_values(
        keys, key=lambda column: _rank(column, orders.get(column.name)), kind="stable", ignore_index=True
    )


def _rank(column: pd.Series, order: Sequence[str] | None) -> pd.Series:
    if order is None:
        return column
    unknown = sorted(set(column) - set(order))
    return column.map({name: place for place, name in enumerate([*order, *unknown])})


def with_rate_quartiles(rows: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Add median, q1 and q3 of a rate, which is inversely proportional to the time (median_ms, q1_ms, q3_ms)."""
    work = rows[quantity] * rows["median_ms"]
    rates = {"median": rows[quantity], "q1": work / rows["q3_ms"], "q3": work / rows["q1_ms"]}
    return rows.assign(**{f"{name}_{quantity}": rate for name, rate in rates.items()})
