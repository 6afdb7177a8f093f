"""Which rows of the timing tables answer which question."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

# Tables come sorted by file name; people read sizes smallest first and precisions widest first.
SIZES = ("nano", "micro", "small", "medium", "large", "xl", "2.7B")
PRECISIONS = ("fp32", "tf32", "bf16")
MODES = ("eager", "compiled")
PASSES = ("forward", "backward", "optimizer", "train_step", "compile")

# The context length at which most others report, so the one to show first.
PREFERRED_CONTEXT = 256


def combine(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Put the tables of all precisions into one, in reading order."""
    rows = pd.concat(tables.values(), ignore_index=True)
    orders = {"precision": PRECISIONS, "size": SIZES, "mode": MODES, "pass": PASSES}
    keys = ["precision", "size", "context_length", "warmup_steps", "mode", "pass"]
    return rows.sort_values(
        keys, key=lambda column: _rank(column, orders.get(column.name)), kind="stable", ignore_index=True
    )


def _rank(column: pd.Series, order: tuple[str, ...] | None) -> pd.Series:
    if order is None:
        return column
    unknown = sorted(set(column) - set(order))
    return column.map({name: place for place, name in enumerate([*order, *unknown])})


def host(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what the host clock measured."""
    return rows[rows["clock"] == "host"]


def ok(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep rows that carry figures, the unstable ones among them."""
    return rows[rows["status"].isin(["ok", "unstable"])]


def main_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager steps measured after the longest warm-up."""
    return rows[(rows["mode"] == "eager") & (rows["warmup_steps"] == rows["warmup_steps"].max())]


def at_context(rows: pd.DataFrame, context_length: int) -> pd.DataFrame:
    """Keep one context length."""
    return rows[rows["context_length"] == context_length]


def main_context(rows: pd.DataFrame) -> int:
    """Choose the context length to show first: 256, else the largest that the most sizes have figures for."""
    sizes = ok(rows).groupby("context_length")["size"].nunique()
    if PREFERRED_CONTEXT in sizes.index:
        return PREFERRED_CONTEXT
    return int(sizes[sizes == sizes.max()].index.max())


def warmup_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the eager train steps, by the host clock, of the one setting shown for the warm-up study.

    That is the first precision, and in it the main context length or else the largest, for which a start
    without warm-up was measured, with the sizes of which it was. Empty where none was.
    """
    steps = ok(host(rows))
    steps = steps[(steps["mode"] == "eager") & (steps["pass"] == "train_step")]
    cold = steps[steps["warmup_steps"] == 0]
    if cold.empty or steps["warmup_steps"].max() == 0:
        return cold.iloc[:0]
    precision = cold["precision"].iloc[0]
    context_length = main_context(cold[cold["precision"] == precision])
    shown = at_context(steps[steps["precision"] == precision], context_length)
    warm = shown[shown["warmup_steps"] == shown["warmup_steps"].max()]
    both = set(shown.loc[shown["warmup_steps"] == 0, "size"]) & set(warm["size"])
    return shown[shown["size"].isin(both)]


def samples_ms(row: pd.Series) -> np.ndarray:
    """Read the raw samples of a row, in the order in which they were measured, in ms."""
    return np.array(str(row["samples_ms"]).split(), dtype=float)


def ratios(numerator: pd.DataFrame, denominator: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Divide the times of rows that agree in the keys.

    Returns the keys with median_ratio, and q1_ratio and q3_ratio: the range that the quartiles of both
    allow. Status and reason are those of whichever row has no figure, or is unstable.
    """
    paired = numerator.merge(denominator, on=keys, suffixes=("", "_below"), validate="one_to_one")
    paired = paired.sort_values(keys, key=lambda c: _rank(c, SIZES if c.name == "size" else None), kind="stable")
    numerator_fails = paired["status"] != "ok"
    return paired[keys].assign(
        median_ratio=paired["median_ms"] / paired["median_ms_below"],
        q1_ratio=paired["q1_ms"] / paired["q3_ms_below"],
        q3_ratio=paired["q3_ms"] / paired["q1_ms_below"],
        status=paired["status"].where(numerator_fails, paired["status_below"]),
        reason=paired["reason"].where(numerator_fails, paired["reason_below"]),
    )
