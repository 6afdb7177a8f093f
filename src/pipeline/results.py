"""Results for a notebook: `from pipeline.results import load`."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from pipeline.cells.rows import columns
from pipeline.cells.stage import SETTING, Stage
from pipeline.cells.tabulate import stage_rows
from pipeline.compare.runs import load_run
from pipeline.registry import stage, stages

# The nullable types of pandas, which keep a whole number whole where another row has none.
DTYPES = {str: "string", bool: "boolean", int: "Int64", float: "Float64"}


def load(name: str, source: str | Path = "results") -> pd.DataFrame:
    """Return the rows of a stage as a typed frame: axes, columns of rows, settings as setting_NAME, machine, software.

    source: a results folder, or a published snapshot. Columns are those of `python -m pipeline describe STAGE` that any
    row has; text, whole numbers, numbers and truths have pandas' nullable types, lists (raw samples) are objects.

    Raises UserError, one line, for an unknown stage, or where there is no record or one is damaged.
    """
    chosen = stage(name)
    records = [record for record in load_run(Path(source), stages()) if record["stage"] == name]
    rows = stage_rows(chosen, records)
    types = _types(chosen)
    lists = _lists(chosen)
    return rows.astype({name: DTYPES[types[name] if name in types else str] for name in rows if name not in lists})


def _types(chosen: Stage) -> dict[str, Any]:
    """Return the types of the columns that are no text."""
    declared: dict[str, Any] = {name: type(value) for name, value in asdict(chosen.cell_type()).items()}
    declared |= {SETTING + name: type(value) for name, value in asdict(chosen.settings_type()).items()}
    for row_type in chosen.row_types.types.values():
        declared |= {name: item.type for name, item in columns(row_type).items()}
    return declared


def _lists(chosen: Stage) -> set[str]:
    every = [item for row_type in chosen.row_types.types.values() for item in columns(row_type).values()]
    return {item.name for item in every if item.is_list}
