"""Results for a notebook: `from pipeline.results import load`."""

from dataclasses import asdict
from pathlib import Path

import pandas as pd

from pipeline.cells.rows import columns
from pipeline.cells.stage import SETTING, Stage
from pipeline.cells.tabulate import stage_rows
from pipeline.registry import stage, stages
from pipeline.snapshots.records import load_records

# Pandas' nullable types, in which integers stay integers although some rows have no value.
DTYPES: dict[type, str] = {str: "string", bool: "boolean", int: "Int64", float: "Float64"}


def load(name: str, source: str | Path = "results") -> pd.DataFrame:
    """Return a stage's rows as a data frame: axes, the columns of `pipeline describe STAGE` that any row has, settings.

    source: a results folder, or a published snapshot. Types are pandas' nullable ones; lists (raw samples) are objects.
    Raises UserError, one line, for an unknown stage, if there is no record, or if one is damaged.
    """
    chosen = stage(name)
    records = [record for record in load_records(Path(source), stages()) if record["stage"] == name]
    rows = stage_rows(chosen, records)
    dtypes = _dtypes(chosen)
    return rows.astype({column: dtypes.get(str(column), DTYPES[str]) for column in rows})


def _dtypes(chosen: Stage) -> dict[str, str]:
    """Return the dtypes of the columns that the stage declares; the others, machine and software, are text."""
    settings = {SETTING + name: value for name, value in asdict(chosen.settings_type()).items()}
    dtypes = {name: DTYPES[type(value)] for name, value in (asdict(chosen.cell_type()) | settings).items()}
    for row_type in chosen.row_types.types.values():
        dtypes |= {name: "object" if item.is_list else DTYPES[item.type] for name, item in columns(row_type).items()}
    return dtypes
