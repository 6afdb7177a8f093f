"""Repeats of a cell in a report: the first one's figures are shown, all of them decide which of two is faster."""

from collections.abc import Sequence

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.instruments.sampling.verdict import RepeatSpread, Verdict, compare_samples, pooled_repeat_spread

# Figures with the same values in these columns pool the spread of their repeats.
KIND_COLUMNS = ("phase", "clock")


def with_repeats(rows: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Keep the first repeat of each cell, each timed row beside what all of its repeats measured.

    keys: the axes but `repeat`, and the columns that name a row of a cell. Adds samples_of_repeats (a list of samples
    per repeat with figures) and repeat_spread (of the rows' phase and clock); without repeats, nothing.
    """
    first = rows[rows["repeat"] == rows["repeat"].min()] if "repeat" in rows else rows
    if len(first) == len(rows) or "samples_ms" not in rows:
        return first
    names, kinds = _joined(rows, keys), _joined(rows, KIND_COLUMNS)
    timed = rows["status"].isin(WITH_FIGURES) & rows["samples_ms"].notna()
    samples = rows[timed].groupby(names)["samples_ms"].agg(list)
    medians = rows[timed & (rows["status"] == "ok")].groupby([kinds, names])["median_ms"].agg(list)
    spreads = {kind: pooled_repeat_spread(group) for kind, group in medians.groupby(level=0)}
    return first.assign(samples_of_repeats=names.map(samples), repeat_spread=kinds.map(spreads))


def _joined(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    present = [name for name in columns if name in rows]
    if not present:
        return pd.Series("", index=rows.index)
    return rows[present].astype("string").fillna("").agg(" ".join, axis=1)  # a skipped row has no clock


def verdict(base: pd.Series, other: pd.Series) -> Verdict:
    """Compare the time of one row with that of another by the project's one rule; the ratio alone without repeats."""
    spread = other.get("repeat_spread")
    if isinstance(spread, RepeatSpread):
        sides = base["samples_of_repeats"], other["samples_of_repeats"]
        if all(isinstance(side, list) for side in sides):
            return compare_samples(*sides, spread)
    return Verdict(other["median_ms"] / base["median_ms"])
