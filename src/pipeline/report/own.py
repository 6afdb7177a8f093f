"""Rank the user's own implementations beside the others that solve the same problem."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from pipeline.cells.fields import text as field_text
from pipeline.cells.stage import Stage
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import code, number, text, times
from pipeline.report.frame import with_figures
from pipeline.report.section import Part
from pipeline.report.table import Columns, Table
from pipeline.report.versus import versus

PARTS = ("own", "own_chart")
MOST_PANELS = 4


def without_own(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Drop the rows of the user's own, which sections do not speak of."""
    if stage.subjects is None or "impl" not in rows:
        return rows
    known = stage.row_types.names()
    return rows[rows["impl"].isna() | rows["impl"].isin(known)].reset_index(drop=True)


def ranked(rows: pd.DataFrame, stage: Stage) -> pd.DataFrame:
    """Return the rows that rank implementations, of problems that the user's own were measured at.

    Added columns: `problem` (the axes and keys that differ, as text), `own`, `place` among those with figures, `of` how
    many, and `best`, `best_ms`, `ratio`, `verdict` beside the fastest of the others. The stage's first problem leads.
    """
    measured = stage.subjects
    if measured is None or "impl" not in rows:
        return rows.head(0)
    if measured.pipelines:
        rows = rows.assign(impl=rows["impl"].astype(object).fillna(measured.pipelines))
    whole = rows[(rows[list(measured.whole)] == pd.Series(dict(measured.whole), dtype=object)).all(axis=1)]
    whole = whole[~whole["impl"].isin(measured.apart)]
    own = ~whole["impl"].isin(stage.row_types.names())
    if not own.any():
        return rows.head(0)
    told = ("impl", *measured.whole, *measured.apart_by)
    keys = [name for name in stage.row_types.key_columns() if name in whole and name not in told]
    differing = [name for name in (*stage.axes, *measured.apart_by) if name in whole and whole[name].nunique() > 1]
    whole = whole.assign(
        problem=[" ".join(f"{name}={field_text(row[name])}" for name in differing) for _, row in whole.iterrows()],
        label=[_label(row, keys) for _, row in whole.iterrows()],
        own=own,
        first=(whole[list(measured.first)] == pd.Series(dict(measured.first), dtype=object)).all(axis=1)
        if measured.first
        else False,
    )
    whole = whole[whole["problem"].isin(whole.loc[whole["own"], "problem"])]
    timed = with_figures(whole).groupby("problem")["median_ms"]
    whole = whole.assign(place=timed.rank(method="min"), of=timed.transform("size"))
    return _beside_best(whole).sort_values(
        ["first", "problem", "median_ms"], ascending=[False, True, True], kind="stable"
    )


def _beside_best(whole: pd.DataFrame) -> pd.DataFrame:
    names, others = whole.loc[whole["own"], "impl"].unique(), whole.loc[~whole["own"], "impl"].unique()
    duel = versus(whole, ["problem"], "impl", list(names), list(others)).set_index(["problem", "label"])
    found = {"best": "label_peer", "best_ms": "median_ms_peer", "ratio": "ratio", "verdict": "verdict"}
    at = pd.MultiIndex.from_frame(whole[["problem", "label"]])
    duel = duel[~duel.index.duplicated()]
    return whole.assign(**{name: duel[column].reindex(at).to_numpy() for name, column in found.items()})


def _label(row: pd.Series, keys: Sequence[str]) -> str:
    told = ", ".join(f"{key} {field_text(int(row[key]))}" for key in keys if pd.notna(row[key]))
    return f"{row['impl']} ({told})" if told else row["impl"]


def parts(rows: pd.DataFrame, stage: Stage) -> list[Part]:
    """Return the table and the chart of the user's own in a stage's section; none where there is none."""
    found = ranked(rows, stage)
    if found.empty:
        return []
    columns: Columns = [
        ("your own", "label", code),
        ("problem", "problem", text),
        ("ms", "median_ms", number),
        ("rank", "place", number),
        ("of", "of", number),
        ("fastest other", "best", text),
        ("its ms", "best_ms", number),
        ("speed-up", "ratio", times),
        ("verdict", "verdict", text),
        ("reason", "reason", text),
    ]
    table = Table(PARTS[0], "Your own beside the fastest of the others:", found[found["own"]], columns)
    shown = found[found["problem"].isin(found["problem"].unique()[:MOST_PANELS])]
    who = np.where(shown["own"], "your own", "others")
    chart = Chart(
        PARTS[1],
        "Your own beside the others",
        shown.assign(who=who, words=shown["median_ms"].map(number, na_action="ignore")),
        "bar",
        Axis("median_ms", "ms, median"),
        Axis("label"),
        label="words",
        panel="problem" if shown["problem"].nunique() > 1 else "",
        hover={"whose": "who"},
    )
    return [table, chart]


def first_rows(frames: Mapping[str, pd.DataFrame], stages: Mapping[str, Stage]) -> pd.DataFrame:
    """Return the first screen's rows: each of the user's own at the first problem of its stage."""
    found = []
    for name, rows in frames.items():
        own = ranked(rows, stages[name])
        own = own[own["own"]] if len(own) else own
        if len(own):
            here = own[own["problem"] == own["problem"].iloc[0]]
            found.append(here.drop_duplicates("impl").assign(stage=name))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def first_table(rows: pd.DataFrame) -> Table:
    """Write `first_rows` as the first screen's table."""
    columns: Columns = [
        ("your own", "label", code),
        ("stage", "stage", text),
        ("problem", "problem", text),
        ("ms", "median_ms", number),
        ("rank", "place", number),
        ("of", "of", number),
        ("fastest other", "best", text),
        ("speed-up", "ratio", times),
        ("verdict", "verdict", text),
        ("reason", "reason", text),
    ]
    return Table("own", "Your own, each at the first problem of its stage:", rows, columns)
