"""Which rows of the levers' tables answer which question."""

import pandas as pd

from pipeline.formulas.size_order import BY_SIZE
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN, LEVERS, UNPROVEN, names

MODEL = ["size", "context_length"]


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep one cell of each model, that with the most rows: what is compared is of one GPU and one stretch of time.

    Sorts by model, then eager, single levers, and combinations, the shorter first; eager once more comes last.
    """
    of_cell = rows.groupby([*MODEL, "combinations"])["levers"].transform("size")
    largest_cells = rows.loc[of_cell.sort_values(kind="stable", ascending=False).index].drop_duplicates(MODEL)
    rows = rows.merge(largest_cells[[*MODEL, "combinations"]])
    every = sorted(rows["levers"].unique(), key=lambda levers: (levers == EAGER_AGAIN, rank(levers)))
    return in_order(rows, [*MODEL, "levers"], {"size": BY_SIZE, "levers": every})


def rank(levers: str) -> tuple[int, list[int]]:
    """Return what sorts combinations: eager, single levers, the shorter first, each in the order of LEVERS."""
    joined = names(levers)
    return len(joined), [LEVERS.index(name) for name in joined]


def models(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each model and context, of those whose eager step and some lever have figures.

    Without the eager step's second turn, see `again`.
    """
    groups = [group for _, group in rows[rows["levers"] != EAGER_AGAIN].groupby(MODEL, sort=False)]
    return [group for group in groups if EAGER in set(ok(group)["levers"]) and len(ok(group)) > 1]


def eager(model: pd.DataFrame) -> pd.Series:
    """Return the eager step of a model."""
    return ok(model[model["levers"] == EAGER]).iloc[0]


def again(rows: pd.DataFrame, model: pd.DataFrame) -> pd.DataFrame:
    """Return the second turn of a model's eager step, of all rows; empty where it was not measured."""
    return rows[(rows["levers"] == EAGER_AGAIN) & (rows[MODEL] == model[MODEL].iloc[0]).all(axis=1)]


def fastest(model: pd.DataFrame) -> pd.Series:
    """Return the fastest step of rows of one model, of which some have figures."""
    return ok(model).loc[ok(model)["median_ms"].idxmin()]


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Choose the model to show first: the largest that has figures for the most combinations."""
    return max(reversed(models(rows)), key=lambda model: len(ok(model)))


def advised(model: pd.DataFrame) -> pd.Series:
    """Return the fastest step of a model, be it the eager one, of levers of which a few steps say enough."""
    return fastest(model[[not {*UNPROVEN} & {*names(levers)} for levers in model["levers"]]])


def ladder(model: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager step, the longest combination, and those between in which one lever more joins at a time."""
    top = max(ok(model)["levers"], key=lambda levers: len(rank(levers)[1]))
    joined = names(top)
    steps = [EAGER, *("+".join(joined[:count]) for count in range(1, len(joined) + 1))]
    return model[model["levers"].isin(steps)]


def alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep single levers."""
    return rows[rows["levers"].isin(LEVERS)]


def with_gain(model: pd.DataFrame) -> pd.DataFrame:
    """Add `gain`: how many times a step fits into the eager one."""
    return model.assign(gain=eager(model)["median_ms"] / model["median_ms"])
