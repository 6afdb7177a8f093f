"""Decide which of two rows is faster, by one rule for pages and comparisons.

Beside the ratio stand its 95% interval and a verdict. Faster, slower: the interval excludes 1 and the ratio is off by
1% or more. Same: the interval lies within 2% of 1. Undecided: anything else; always where a side is unstable.

With repeats the interval is that of pipeline.statistics.medians: by the spread of both sides' own repeats where each
has three, else by that of their kind. Without any of the kind it is the range that the quartiles allow, and only a
ratio off by 5% or more is called.
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
# Fewer repeats of a side say too little about how far its processes lie apart.
LEAST_REPEATS = 3
# What of a row decides.
JUDGED = ("status", "median_ms", "q1_ms", "q3_ms", "samples_of_repeats", "spread_log_std", "spread_degrees")
Row = Mapping[str, Any]


def versus(
    frame: pd.DataFrame, on: Sequence[str], who: str, ours: str | Sequence[str], peers: Sequence[str]
) -> pd.DataFrame:
    """Put `ours` beside the fastest of `peers`: one row per `on` and name in `ours`, where both have values.

    who: the column that names them. Columns are those of ours, with `_peer` those of the other, and COLUMNS: ratio is
    the peer's time over ours, so above 1 ours is faster; gain is the ratio with its interval, as text.
    """
    timed = frame[frame["status"].isin(WITH_VALUES)]
    mine, theirs = (timed[timed[who].isin([names] if isinstance(names, str) else names)] for names in (ours, peers))
    fastest = theirs.groupby(list(on), sort=False, dropna=False)["median_ms"].idxmin()
    return judged(mine.merge(theirs.loc[fastest], on=list(on), suffixes=("", "_peer")), "_peer")


def side_by_side(frame: pd.DataFrame, on: Sequence[str], who: str, ours: str, peer: str) -> pd.DataFrame:
    """Put two beside each other wherever `ours` has a row, whatever came of it; the columns are those of `versus`."""
    mine, theirs = (frame[frame[who] == name] for name in (ours, peer))
    return judged(mine.merge(theirs, "left", list(on), suffixes=("", "_peer")), "_peer")


def beside(rows: pd.DataFrame, on: Sequence[str], is_base: pd.Series) -> pd.DataFrame:
    """Put each row beside the first of its `on` that is a base and has values.

    Added: COLUMNS, empty for that row itself and where a side has no values; `base`, that row's index.
    """
    groups = rows.groupby(list(on), sort=False, dropna=False).ngroup()
    first = groups[is_base & rows["status"].isin(WITH_VALUES)].drop_duplicates()
    bases = groups.map(pd.Series(first.index, first))
    others = rows.reindex(bases.mask(bases == rows.index)).set_axis(rows.index).add_suffix("_base")
    return judged(rows.join(others), "_base").drop(columns=others.columns).assign(base=bases)


def judged(both: pd.DataFrame, base: str, other: str = "") -> pd.DataFrame:
    """Add COLUMNS to rows of two sides, told by the suffixes of their columns; empty where one has no values."""
    sides = (
        both.reindex(columns=[f"{name}{suffix}" for name in JUDGED]).set_axis([*JUDGED], axis="columns")
        for suffix in (base, other)
    )
    pairs = zip(*(rows.to_dict("records") for rows in sides), strict=True)
    found = [judge(a, b) if {a["status"], b["status"]} <= {*WITH_VALUES} else {} for a, b in pairs]
    columns = pd.DataFrame(found, both.index, COLUMNS)
    # As few blocks: sections add columns to it.
    return pd.concat([both.drop(columns=[*COLUMNS], errors="ignore"), columns], axis="columns").copy()


def judge(base: Row, other: Row) -> dict[str, Any]:
    """Return COLUMNS for two rows of a frame: the time of `base` over that of `other`, whether `other` is faster."""
    found = _by_repeats(base, other) or _by_quartiles(base, other)
    unsure = {"verdict": UNDECIDED} if "unstable" in (base["status"], other["status"]) else {}
    return found | unsure | {"gain": interval(found)}


def peer_of(row: pd.Series) -> pd.Series:
    """Return the other side of a row of `versus`."""
    return row.filter(regex="_peer$").rename(lambda name: name.removesuffix("_peer"))


def shaded(both: pd.DataFrame) -> pd.DataFrame:
    """Give rows of `versus` the outcome by which a chart draws undecided ratios faint."""
    return both.assign(status=both["verdict"].map({UNDECIDED: "unstable"}).fillna("ok"))


def median_interval(row: Row) -> tuple[float, float]:
    """Return the 95% interval of a row's median in ms; the quartiles where nothing of its kind was repeated."""
    spread, repeats = _widest_spread(row), row.get("samples_of_repeats")
    if spread is None or not isinstance(repeats, list) or min(map(len, repeats)) < LEAST_SAMPLES:
        return row["q1_ms"], row["q3_ms"]
    middle, half = log_median(repeats), half_interval([repeats], spread)
    return math.exp(middle - half), math.exp(middle + half)


def compare_samples(base: Repeats, other: Repeats, spread: RepeatSpread) -> dict[str, Any] | None:
    """Return COLUMNS for two sides, each given as the samples of its repeats in the order taken.

    spread: that of repeats of such values. None with fewer than LEAST_SAMPLES in a repeat.
    """
    if min(map(len, [*base, *other])) < LEAST_SAMPLES:
        return None
    log_ratio, half = log_median(base) - log_median(other), half_interval([base, other], spread)
    ratio, low, high = (math.exp(log_ratio + off) for off in (0.0, -half, half))
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


def _verdict(ratio: float, low: float, high: float, least: float, widest: float) -> dict[str, Any]:
    """Call a ratio `least` or more off whose interval excludes 1; widest: the interval within which it is the same."""
    apart = max(ratio, 1 / ratio)
    if apart >= least and not low <= 1 <= high:
        word = FASTER if ratio > 1 else SLOWER
    else:
        word = SAME if apart <= LARGEST_SAMENESS and max(high, 1 / low) <= widest else UNDECIDED
    return {"ratio": ratio, "low": low, "high": high, "verdict": word}
