"""The rows that a stage's section is built from, from records."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells.stage import Stage, Stages
from pipeline.cells.stage_rows import stage_rows
from pipeline.report.one_peak import with_one_peak
from pipeline.report.repeats import with_repeats
from pipeline.report.table_rows import complete, readable
from pipeline.report.users_own import without_users_own

Record = Mapping[str, Any]
Records = Sequence[Record]


def by_stage(records: Iterable[Record]) -> dict[str, list[Record]]:
    """Group records by the name of their stage."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record["stage"], []).append(record)
    return found


def section_rows(stage: Stage, stages: Stages, records: Mapping[str, Records]) -> list[Any]:
    """Return the arguments of a stage's section: its rows and, if it reads other stages, theirs by name.

    records: by the name of their stage.
    """
    rows, *beside = (
        without_users_own(shown_rows(stages[name], records.get(name, ())), stages[name])
        for name in (stage.name, *stage.reads)
    )
    return [rows, dict(zip(stage.reads, beside, strict=True))] if stage.reads else [rows]


def shown_rows(stage: Stage, records: Records) -> pd.DataFrame:
    """Return the rows of a stage's records as they are shown, each of the middle one of its cell's repeats.

    They have all columns that the stage declares, also those that no row fills.
    """
    axes = [name for name in stage.axes if name != "repeat"]
    rows = with_one_peak(complete(readable(stage_rows(stage, records)), stage.row_types))
    return with_repeats(rows, axes, stage.row_types.key_columns())
