"""Rank the user's own implementations against others of the same problem."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells.fields import text as field_text
from pipeline.cells.stage import Stage
from pipeline.report import ways
from pipeline.report.formats import number
from pipeline.report.frame import matching, with_values
from pipeline.report.section import Part, StageReport
from pipeline.report.table import Table
from pipeline.report.versus import versus
from pipeline.report.words import Words

WORDS = Words(__file__)
PARTS = ("users", "users_chart")
MOST_PANELS = 4
RANKED = "problem median_ms place of best median_ms_best ratio:times verdict rank_bytes sent_bytes reason"


def without_users(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Drop the rows of the user's own implementations, which sections do not cover."""
    if stage.subjects is None or "impl" not in rows:
        return rows
    known = stage.row_types.impl_names()
    return rows[rows["impl"].isna() | rows["impl"].isin(known)].reset_index(drop=True)


def ranked(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Return the rows that rank implementations, for the problems on which the user's own were measured.

    Added columns: `problem` (the axes and keys that differ, or all axes if there is one problem, as text), `is_users`
    (whether it is the user's), `place` among the `of` rows with values (none if its time is unstable), and `best`,
    `median_ms_best`, `ratio`, `verdict` against the fastest other; where a stage measures them, `rank_bytes` and
    `sent_bytes`. The stage's first problem comes first.
    """
    subjects = stage.subjects
    if subjects is None or "impl" not in rows:
        return rows.head(0)
    if subjects.pipelines:
        rows = rows.assign(impl=rows["impl"].astype(object).fillna(subjects.pipelines))
    ranking = matching(rows, subjects.whole)
    ranking = ranking[~ranking["impl"].isin(subjects.apart)]
    ranking = ranking.assign(is_users=~ranking["impl"].isin(stage.row_types.impl_names()))
    if not ranking["is_users"].any():
        return rows.head(0)
    not_in_label = ("impl", *subjects.whole, *subjects.apart_by)
    keys = [name for name in stage.row_types.key_columns() if name in ranking and name not in not_in_label]
    differing = [name for name in (*stage.axes, *subjects.apart_by) if name in ranking and ranking[name].nunique() > 1]
    differing = differing or [name for name in stage.axes if name in ranking]
    lines = ranking.to_dict("records")
    ranking = ranking.assign(
        problem=[" ".join(f"{name}={field_text(row[name])}" for name in differing) for row in lines],
        label=[_label(row, keys) for row in lines],
        first=ranking.index.isin(matching(ranking, subjects.first).index),
    )
    ranking = ranking[ranking["problem"].isin(ranking.loc[ranking["is_users"], "problem"])]
    timed = with_values(ranking).groupby("problem")["median_ms"]
    if {"measured_bytes", "sent_bytes"} <= {*rows}:
        ranking, rows = (ways.of_cases(each, each["impl"]) for each in (ranking, rows))
        ranking = ways.with_bytes(ranking, rows)
    place = timed.rank(method="min").where(ranking["status"] != "unstable")
    ranking = _with_best_other(ranking.assign(place=place, of=timed.transform("size")))
    return ranking.sort_values(["first", "problem", "median_ms"], ascending=[False, True, True], kind="stable")


def _with_best_other(ranking: pd.DataFrame) -> pd.DataFrame:
    names, others = (
        ranking.loc[ranking["is_users"] == of_users, "impl"].unique().tolist() for of_users in (True, False)
    )
    found = {"label_peer": "best", "median_ms_peer": "median_ms_best", "status_peer": "status_best"}
    found |= {"ratio": "ratio", "verdict": "verdict"}
    duel = versus(ranking, ["problem"], "impl", names, others).drop_duplicates(["problem", "label"])
    return ranking.join(duel.set_index(["problem", "label"])[[*found]].rename(columns=found), on=["problem", "label"])


def _label(row: Mapping[Hashable, Any], keys: Sequence[str]) -> str:
    options = ", ".join(f"{key} {field_text(int(row[key]))}" for key in keys if pd.notna(row[key]))
    return f"{row['impl']} ({options})" if options else row["impl"]


def parts(rows: pd.DataFrame, stage: Stage) -> list[Part]:
    """Return the table and chart of the user's own implementations for a stage's section; empty without any."""
    found = ranked(rows, stage)
    if found.empty:
        return []
    table = WORDS.table(PARTS[0], found[found["is_users"]], f"label:code {RANKED}", all_rows=False)
    shown = found[found["problem"].isin(found["problem"].unique()[:MOST_PANELS])]
    who = np.where(shown["is_users"], "your own", "others")
    shown = shown.assign(who=who, words=shown["median_ms"].map(number, na_action="ignore"))
    panel = "problem" if shown["problem"].nunique() > 1 else ""
    chart = WORDS.chart(PARTS[1], shown, "bar", "median_ms", "label", hover="who", label="words", panel=panel)
    return [table, chart]


def first_table(stage_reports: Sequence[StageReport]) -> Table:
    """Return the first screen's table: each of the user's own implementations on one problem of its stage.

    This is the first problem, or the first on which it is wrong.
    """
    rankings = [ranked(each.rows, each.stage).assign(stage=each.stage.name) for each in stage_reports]
    users_rows = [rows[rows["is_users"]] for rows in rankings if len(rows)]
    rows = pd.concat(map(_of_one_problem, users_rows), ignore_index=True) if users_rows else pd.DataFrame()
    return WORDS.table("first_users", rows, f"label:code stage {RANKED}", all_rows=False)


def _of_one_problem(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep one row per implementation, those that are wrong first."""
    wrong = rows["status"] == "wrong"
    shown = rows[wrong | (rows["problem"] == rows["problem"].iloc[0])].assign(right=~wrong)
    return shown.sort_values("right", kind="stable").drop_duplicates("impl")
