"""Which rows of the levers' tables answer which question."""

import pandas as pd

from pipeline.formulas.size_order import BY_SIZE
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.levers.cell import EAGER, LEVERS

MODEL = ["size", "context_length"]


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort by model, then eager, single levers, and combinations, the shorter first."""
    names = sorted(rows["levers"].unique(), key=rank)
    return in_order(rows, [*MODEL, "levers"], {"size": BY_SIZE, "levers": names})


def rank(levers: str) -> tuple[int, list[int]]:
    """Return what sorts combinations: eager, single levers, the shorter first, each in the order of LEVERS."""
    names = [] if levers == EAGER else levers.split("+")
    return len(names), [LEVERS.index(name) for name in names]


def models(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of each model and context, of those whose eager step and some lever have figures."""
    groups = [group for _, group in rows.groupby(MODEL, sort=False)]
    return [group for group in groups if EAGER in set(ok(group)["levers"]) and len(ok(group)) > 1]


def eager(model: pd.DataFrame) -> pd.Series:
    """Return the eager step of a model."""
    return ok(model[model["levers"] == EAGER]).iloc[0]


def fastest(model: pd.DataFrame) -> pd.Series:
    """Return the fastest step of rows of one model, of which some have figures."""
    return ok(model).loc[ok(model)["median_ms"].idxmin()]


def largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Choose the model to show first: the largest that has figures for the most combinations."""
    return max(reversed(models(rows)), key=lambda model: len(ok(model)))


def advised(model: pd.DataFrame) -> pd.Series:
    """Return the fastest step of a model without weights in bf16, be it the eager one.

    A few steps do not show what many small updates lose that such weights round away.
    """
    return fastest(model[~model["levers"].str.contains("bf16_weights", regex=False)])


def ladder(model: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager step, the longest combination, and those between in which one lever more joins at a time."""
    top = max(ok(model)["levers"], key=lambda levers: len(rank(levers)[1]))
    names = top.split("+")
    steps = [EAGER, *("+".join(names[:count]) for count in range(1, len(names) + 1))]
    return model[model["levers"].isin(steps)]


def alone(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep single levers."""
    return rows[rows["levers"].isin(LEVERS)]


def with_gain(model: pd.DataFrame) -> pd.DataFrame:
    """Add `gain`: how many times a step fits into the eager one."""
    return model.assign(gain=eager(model)["median_ms"] / model["median_ms"])
