"""Decide which of two rows is faster, by one rule for pages and comparisons.

A ratio has a 95% interval and a verdict. Faster, slower: the interval excludes 1 and the ratio is off by 1% or more.
Same: the interval lies within 2% of 1. Undecided: anything else, and always if a side is unstable.

With repeats, the interval comes from pipeline.statistics.medians: it uses the spread of both sides' own repeats if each
has three, else that of repeats of the same kind. If nothing of the kind was repeated, it is the range that the
quartiles allow; then faster or slower needs a ratio off by 5% or more, and same a ratio within 2% of 1 whose range is
within 5%.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells.rows import WITH_VALUES
from pipeline.report.formats import interval
from pipeline.statistics.medians import (
    LEAST_SAMPLES,
    Repeats,
    RepeatSpread,
    half_interval,
    log_median,
    pooled_spread,
    process_medians,
)

FASTER, SLOWER, SAME, UNDECIDED = "faster", "slower", "same", "undecided"
LEAST_DIFFERENCE, LARGEST_SAMENESS, LEAST_WITHOUT_REPEATS = 1.01, 1.02, 1.05
COLUMNS = ("ratio", "low", "high", "verdict", "gain")
# Fewer repeats of a side say too little about the spread between its processes.
LEAST_REPEATS = 3
# The columns that decide; those of repeats are empty for a value without samples.
REPEAT_COLUMNS = ("samples_of_repeats", "spread_log_std", "spread_degrees")
JUDGED = ("status", "median_ms", "q1_ms", "q3_ms", *REPEAT_COLUMNS)
Row = Mapping[str, Any]


def versus(
    frame: pd.DataFrame, on: Sequence[str], who: str, ours: str | Sequence[str], peers: Sequence[str]
) -> pd.DataFrame:
    """Compare `ours` with the fastest of `peers`: one row per `on` and name in `ours`, if both have values.

    who: the column that names them. The columns are those of ours, those of the peer with the suffix `_peer`, and
    COLUMNS: ratio is the peer's time over ours, so ours is faster above 1; gain is ratio and interval as text.
    """
    timed = frame[frame["status"].isin(WITH_VALUES)]
    mine, theirs = (timed[timed[who].isin([names] if isinstance(names, str) else names)] for names in (ours, peers))
    fastest = theirs.groupby(list(on), sort=False, dropna=False)["median_ms"].idxmin()
    return judged(mine.merge(theirs.loc[fastest], on=list(on), suffixes=("", "_peer")), "_peer")


def side_by_side(frame: pd.DataFrame, on: Sequence[str], who: str, ours: str, peer: str) -> pd.DataFrame:
    """Compare two names wherever `ours` has a row, whatever its outcome; the columns are those of `versus`."""
    mine, theirs = (frame[frame[who] == name] for name in (ours, peer))
    return judged(mine.merge(theirs, "left", list(on), suffixes=("", "_peer")), "_peer")


def against_base(rows: pd.DataFrame, on: Sequence[str], is_base: pd.Series) -> pd.DataFrame:
    """Compare each row with its base: the first row with the same `on` that `is_base` selects and that has values.

    Added: COLUMNS, empty for the base itself and if a side has no values; `base`, the index of the base.
    """
    groups = rows.groupby(list(on), sort=False, dropna=False).ngroup()
    first = groups[is_base & rows["status"].isin(WITH_VALUES)].drop_duplicates()
    bases = groups.map(pd.Series(first.index, first))
    others = rows.reindex(bases.mask(bases == rows.index)).set_axis(rows.index).add_suffix("_base")
    return judged(rows.join(others), "_base").drop(columns=others.columns).assign(base=bases)


def judged(both: pd.DataFrame, base: str, other: str = "") -> pd.DataFrame:
    """Add COLUMNS to rows that hold two sides; base, other: suffixes of their columns. Empty if one has no values."""
    sides = (
        both.reindex(columns=[f"{name}{suffix}" for name in JUDGED]).set_axis([*JUDGED], axis="columns")
        for suffix in (base, other)
    )
    pairs = zip(*(rows.to_dict("records") for rows in sides), strict=True)
    found = [judge(a, b) if {a["status"], b["status"]} <= {*WITH_VALUES} else {} for a, b in pairs]
    columns = pd.DataFrame(found, both.index, COLUMNS)
    # Defragment it: sections add columns.
    return pd.concat([both.drop(columns=[*COLUMNS], errors="ignore"), columns], axis="columns").copy()


def judge(base: Row, other: Row) -> dict[str, Any]:
    """Return COLUMNS for two rows of a frame; the ratio is the time of `base` over that of `other`."""
    found = _by_repeats(base, other) or _by_quartiles(base, other)
    unsure = {"verdict": UNDECIDED} if "unstable" in (base["status"], other["status"]) else {}
    return found | unsure | {"gain": interval(found)}


def peer_of(row: pd.Series) -> pd.Series:
    """Return the other side of a row of `versus`."""
    return row.filter(regex="_peer$").rename(lambda name: name.removesuffix("_peer"))


def shaded(both: pd.DataFrame) -> pd.DataFrame:
    """Set the status of rows of `versus` so that a chart draws undecided ratios faint."""
    return both.assign(status=both["verdict"].map({UNDECIDED: "unstable"}).fillna("ok"))


def median_interval(row: Row) -> tuple[float, float]:
    """Return the 95% interval of a row's median in ms; the quartiles if nothing of its kind was repeated."""
    spread, repeats = _widest_spread(row), row.get("samples_of_repeats")
    if spread is None or not isinstance(repeats, list) or min(map(len, repeats)) < LEAST_SAMPLES:
        return row["q1_ms"], row["q3_ms"]
    middle, half = log_median(repeats), half_interval([repeats], spread)
    return math.exp(middle - half), math.exp(middle + half)


def compare_samples(base: Repeats, other: Repeats, spread: RepeatSpread) -> dict[str, Any] | None:
    """Return ratio, low, high and verdict for two sides, each given as the samples of its repeats in the order taken.

    spread: that between repeats of such values. None if a repeat has fewer than LEAST_SAMPLES.
    """
    if min(map(len, [*base, *other])) < LEAST_SAMPLES:
        return None
    log_ratio, half = log_median(base) - log_median(other), half_interval([base, other], spread)
    ratio, low, high = (math.exp(log_ratio + shift) for shift in (0.0, -half, half))
    return _verdict(ratio, low, high, LEAST_DIFFERENCE, LARGEST_SAMENESS)


def _by_repeats(base: Row, other: Row) -> dict[str, Any] | None:
    a, b = base.get("samples_of_repeats"), other.get("samples_of_repeats")
    if not isinstance(a, list) or not isinstance(b, list):
        return None
    has_own = min(len(a), len(b)) >= LEAST_REPEATS
    spread = pooled_spread([process_medians(a), process_medians(b)]) if has_own else _widest_spread(base, other)
    return compare_samples(a, b, spread) if spread else None


def _widest_spread(*rows: Row) -> RepeatSpread | None:
    known = [row for row in rows if (row.get("spread_degrees") or 0) > 0]
    return max((RepeatSpread(row["spread_log_std"], row["spread_degrees"]) for row in known), default=None)


def _by_quartiles(base: Row, other: Row) -> dict[str, Any]:
    ratio = base["median_ms"] / other["median_ms"]
    low, high = base["q1_ms"] / other["q3_ms"], base["q3_ms"] / other["q1_ms"]
    if any(_has_no_spread(row.get("samples_of_repeats")) for row in (base, other)):
        return {"ratio": ratio, "low": math.nan, "high": math.nan, "verdict": UNDECIDED}
    return _verdict(ratio, low, high, LEAST_WITHOUT_REPEATS, LEAST_WITHOUT_REPEATS)


def _has_no_spread(repeats: object) -> bool:
    """Tell whether these are single samples, such as a first call."""
    return isinstance(repeats, list) and max(map(len, repeats)) == 1


def _verdict(ratio: float, low: float, high: float, least_difference: float, widest_same: float) -> dict[str, Any]:
    """Judge a ratio; least_difference: needed for faster or slower; widest_same: the widest interval called same."""
    apart = max(ratio, 1 / ratio)
    if apart >= least_difference and not low <= 1 <= high:
        word = FASTER if ratio > 1 else SLOWER
    else:
        word = SAME if apart <= LARGEST_SAMENESS and max(high, 1 / low) <= widest_same else UNDECIDED
    return {"ratio": ratio, "low": low, "high": high, "verdict": word}
