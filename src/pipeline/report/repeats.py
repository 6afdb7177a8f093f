"""Repeats of a cell in a report: the middle one's figures are shown, all of them decide which of two is faster."""

from collections.abc import Sequence

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.cells.samples import NEGLIGIBLE_SHARE
from pipeline.instruments.sampling.verdict import RepeatSpread, Verdict, compare_samples, pooled_repeat_spread
from pipeline.report.section import ms

# Figures with the same values in these columns pool the spread of their repeats.
KIND_COLUMNS = ("phase", "clock")
WHOLE_STEP = "train_step"
LIMIT = "setting_unstable_rel_error"


def with_repeats(rows: pd.DataFrame, axes: Sequence[str], keys: Sequence[str]) -> pd.DataFrame:
    """Keep the middle repeat of each cell, each timed row beside what all of its repeats measured.

    A figure is unstable, too, where the medians of its repeats lie further apart than the limit of the standard error
    within one; a phase only where that matters to its whole step. axes: those of the cell but `repeat`; keys: the
    columns that name a row of a cell. Adds samples_of_repeats and medians_of_repeats_ms (lists, of repeats with figures
    and of stable ones), repeat_spread (of the stable figures of the rows' phase and clock) and, beside a peak_bytes,
    least_peak_bytes and most_peak_bytes; without repeats, nothing.
    """
    if "repeat" not in rows or rows["repeat"].nunique() < 2:
        return rows
    middle = rows[_is_of_the_middle_repeat(rows, _joined(rows, axes))]
    if "samples_ms" not in rows:
        return middle
    timed = rows["status"].isin(WITH_FIGURES) & rows["samples_ms"].notna()
    names, kinds = _joined(rows, [*axes, *keys]), _joined(rows, KIND_COLUMNS)
    samples = rows[timed].groupby(names)["samples_ms"].agg(list)
    medians = rows[timed & (rows["status"] == "ok")].groupby(names)["median_ms"].agg(list)
    every = names.map(rows[timed].groupby(names)["median_ms"].agg(list))
    told = middle.assign(samples_of_repeats=names.map(samples), medians_of_repeats_ms=names.map(medians))
    if "peak_bytes" in rows:
        peaks = rows["peak_bytes"].astype(float).groupby(names)
        told = told.assign(least_peak_bytes=names.map(peaks.min()), most_peak_bytes=names.map(peaks.max()))
    steps_ms = _whole_steps_ms(middle, [*axes, *keys])
    shown = _without_disagreement(told, every.loc[middle.index], steps_ms)
    stable = shown.loc[shown["status"] == "ok", "medians_of_repeats_ms"].dropna()
    spreads = {kind: pooled_repeat_spread(group) for kind, group in stable.groupby(kinds)}
    return shown.assign(repeat_spread=kinds.map(spreads))


def _is_of_the_middle_repeat(rows: pd.DataFrame, cells: pd.Series) -> pd.Series:
    """Tell which rows are of the repeat of their cell that took neither least nor most time, all its rows together.

    Of two that is the faster one. A cell without times has its first repeat.
    """
    timed_ms = rows.reindex(columns=["median_ms"])["median_ms"].where(rows["status"].isin(WITH_FIGURES)).astype(float)
    repeats_ms = timed_ms.groupby([cells, rows["repeat"]]).sum(min_count=1)  # NaN: without times, sorted last
    ranked = repeats_ms.sort_values(kind="stable").groupby(level=0)
    middle = ranked.agg(lambda level: level.index[max(level.count() - 1, 0) // 2][1])
    return rows["repeat"] == cells.map(middle)


def contradict(medians: Sequence[float], limit: float) -> bool:
    """Tell whether the medians of repeats lie further apart than the limit, a fraction: none is then to be trusted."""
    return max(medians) > (1 + limit) * min(medians)


def contradiction(medians_ms: Sequence[float]) -> str:
    """Say why a figure whose repeats contradict each other is unstable."""
    return f"repeats take {ms(min(medians_ms))} to {ms(max(medians_ms))}"


def _whole_steps_ms(rows: pd.DataFrame, keys: Sequence[str]) -> pd.Series:
    """Return the median of the whole step that each row is a phase of; 0 where there is none."""
    if "phase" not in rows:
        return pd.Series(0.0, index=rows.index)
    names = _joined(rows, [key for key in keys if key not in KIND_COLUMNS])
    steps = rows[rows["phase"] == WHOLE_STEP]
    return names.map(steps["median_ms"].astype(float).groupby(names).max()).fillna(0.0)


def _without_disagreement(rows: pd.DataFrame, medians_ms: pd.Series, steps_ms: pd.Series) -> pd.DataFrame:
    """Mark as unstable the rows whose repeats contradict each other, and give the two furthest as the reason.

    medians_ms: of the repeats with figures of each row. steps_ms: of the whole step that each is a phase of, or 0.
    """
    if LIMIT not in rows:
        return rows
    medians = medians_ms[rows["status"] == "ok"].dropna()
    apart = [
        place
        for place, repeats in medians.items()
        if contradict(repeats, limit := rows.at[place, LIMIT])
        and max(repeats) - min(repeats) > NEGLIGIBLE_SHARE * limit * steps_ms[place]
    ]
    marked = rows.assign(reason=rows["reason"].astype(object) if "reason" in rows else None)
    marked.loc[apart, "status"] = "unstable"
    marked.loc[apart, "reason"] = [contradiction(repeats) for repeats in medians[apart]]
    return marked


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
