"""Turn all rows of a stage into columns of plain data, for a table that sorts and filters them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from pipeline.cells.rows import columns
from pipeline.cells.stage import Stage

DIGITS = 6
LONGEST_TEXT = 400


@dataclass(frozen=True)
class RowTable:
    """A table of rows: columns in order, each with its values; what is the same in every row stands in `same`.

    meanings: what a column holds, where its stage declares it. told_by: the column whose values rows are chosen by.
    """

    columns: Mapping[str, list[Any]]
    same: Mapping[str, Any]
    meanings: Mapping[str, str]
    told_by: str


def row_table(rows: pd.DataFrame, meanings: Mapping[str, str], told_by: str = "status") -> RowTable:
    """Make a table of rows with numbers to DIGITS; lists, such as samples, and empty columns are left out."""
    is_list = rows.map(lambda value: isinstance(value, list)).any()
    short = rows.loc[:, ~is_list].map(_short, na_action="ignore").dropna(axis="columns", how="all")
    values = {name: json.loads(short[name].to_json(orient="values")) for name in short}
    alike = [name for name in short if name != told_by and len(short) > 1 and short[name].nunique(dropna=False) == 1]
    same = {name: values[name][0] for name in alike}
    varying = {name: found for name, found in values.items() if name not in same}
    return RowTable(varying, same, {name: text for name, text in meanings.items() if name in short}, told_by)


def meanings(stage: Stage) -> dict[str, str]:
    """Return what the columns of a stage's rows mean, as it declares them."""
    declared = [columns(row_type) for row_type in stage.row_types.types.values()]
    return {name: item.meaning for each in reversed(declared) for name, item in each.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]}…"
    return value
