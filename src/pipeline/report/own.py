"""Rank the user's own implementations beside the others that solve the same problem."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.fields import text as field_text
from pipeline.cells.stage import Stage
from pipeline.report.formats import number
from pipeline.report.frame import alike, with_values
from pipeline.report.section import Part, Told
from pipeline.report.table import Table
from pipeline.report.versus import versus
from pipeline.report.words import Words

WORDS = Words(__file__)
PARTS = ("own", "own_chart")
MOST_PANELS = 4
RANKED = "problem median_ms place of best median_ms_best ratio:times verdict reason"


def without_own(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Drop the rows of the user's own, which sections do not speak of."""
    if stage.subjects is None or "impl" not in rows:
        return rows
    known = stage.row_types.names()
    return rows[rows["impl"].isna() | rows["impl"].isin(known)].reset_index(drop=True)


def ranked(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Return the rows that rank implementations, of problems that the user's own were measured at.

    Added columns: `problem` (the axes and keys that differ, or all axes of a single one, as text), `own`, `place` among
    those with values, `of` how many, `best`, `median_ms_best`, `ratio`, `verdict` beside the fastest other. The stage's
    first problem leads.
    """
    measured = stage.subjects
    if measured is None or "impl" not in rows:
        return rows.head(0)
    if measured.pipelines:
        rows = rows.assign(impl=rows["impl"].astype(object).fillna(measured.pipelines))
    whole = alike(rows, measured.whole)
    whole = whole[~whole["impl"].isin(measured.apart)]
    whole = whole.assign(own=~whole["impl"].isin(stage.row_types.names()))
    if not whole["own"].any():
        return rows.head(0)
    told = ("impl", *measured.whole, *measured.apart_by)
    keys = [name for name in stage.row_types.key_columns() if name in whole and name not in told]
    differing = [name for name in (*stage.axes, *measured.apart_by) if name in whole and whole[name].nunique() > 1]
    differing = differing or [name for name in stage.axes if name in whole]
    lines = whole.to_dict("records")
    whole = whole.assign(
        problem=[" ".join(f"{name}={field_text(row[name])}" for name in differing) for row in lines],
        label=[_label(row, keys) for row in lines],
        first=whole.index.isin(alike(whole, measured.first).index),
    )
    whole = whole[whole["problem"].isin(whole.loc[whole["own"], "problem"])]
    timed = with_values(whole).groupby("problem")["median_ms"]
    whole = _beside_best(whole.assign(place=timed.rank(method="min"), of=timed.transform("size")))
    return whole.sort_values(["first", "problem", "median_ms"], ascending=[False, True, True], kind="stable")


def _beside_best(whole: pd.DataFrame) -> pd.DataFrame:
    names, others = (whole.loc[whole["own"] == own, "impl"].unique().tolist() for own in (True, False))
    found = {"label_peer": "best", "median_ms_peer": "median_ms_best", "status_peer": "status_best"}
    found |= {"ratio": "ratio", "verdict": "verdict"}
    duel = versus(whole, ["problem"], "impl", names, others).drop_duplicates(["problem", "label"])
    return whole.join(duel.set_index(["problem", "label"])[[*found]].rename(columns=found), on=["problem", "label"])


def _label(row: Mapping[Hashable, Any], keys: Sequence[str]) -> str:
    told = ", ".join(f"{key} {field_text(int(row[key]))}" for key in keys if pd.notna(row[key]))
    return f"{row['impl']} ({told})" if told else row["impl"]


def parts(rows: pd.DataFrame, stage: Stage) -> list[Part]:
    """Return the table and the chart of the user's own in a stage's section; none where there is none."""
    found = ranked(rows, stage)
    if found.empty:
        return []
    table = WORDS.table(PARTS[0], found[found["own"]], f"label:code {RANKED}", all_rows=False)
    shown = found[found["problem"].isin(found["problem"].unique()[:MOST_PANELS])]
    who = np.where(shown["own"], "your own", "others")
    shown = shown.assign(who=who, words=shown["median_ms"].map(number, na_action="ignore"))
    panel = "problem" if shown["problem"].nunique() > 1 else ""
    chart = WORDS.chart(PARTS[1], shown, "bar", "median_ms", "label", hover="who", label="words", panel=panel)
    return [table, chart]


def first_table(told: Sequence[Told]) -> Table:
    """Return the first screen's table: each of the user's own at the first problem of its stage."""
    every = [ranked(each.rows, each.stage).assign(stage=each.stage.name) for each in told]
    mine = [rows[rows["own"]] for rows in every if len(rows)]
    first = [rows[rows["problem"] == rows["problem"].iloc[0]].drop_duplicates("impl") for rows in mine]
    rows = pd.concat(first, ignore_index=True) if first else pd.DataFrame()
    return WORDS.table("first_own", rows, f"label:code stage {RANKED}", all_rows=False)
