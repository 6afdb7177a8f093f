"""Decide which of two rows is faster, by one rule for pages and comparisons.

Beside the ratio stand its 95% interval and a verdict:

- faster, slower: the interval excludes 1 and the ratio is off by 1% or more;
- same: the interval lies within 2% of 1;
- undecided: anything else; always where a side is unstable.

With repeats the interval combines the spread between processes and within each (pipeline.report.intervals).
Without any of the kind it is the range that the quartiles allow, and only a ratio off by 5% or more is called.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.formats import interval
from pipeline.report.intervals import RepeatSpread, compare_samples

FASTER, SLOWER, SAME, UNDECIDED = ("faster", "slower", "same", "undecided")
LEAST_WITHOUT_REPEATS, SAMENESS = 1.05, 1.02
COLUMNS = ("ratio", "low", "high", "verdict", "gain")
# What of a row decides.
JUDGED = ("status", "median_ms", "q1_ms", "q3_ms", "samples_of_repeats", "spread_log_std", "spread_degrees")
Row = Mapping[str, Any]


def versus(
    frame: pd.DataFrame, on: Sequence[str], who: str, ours: str | Sequence[str], peers: Sequence[str]
) -> pd.DataFrame:
    """Put `ours` beside the fastest of `peers`: one row per `on` and name in `ours`, where both have figures.

    who: the column that names them. Columns are those of ours, with `_peer` those of the other, and COLUMNS: ratio is
    the peer's time over ours, so above 1 ours is faster; gain is the ratio with its interval, as text.
    """
    names = [ours] if isinstance(ours, str) else list(ours)
    timed = frame[frame["status"].isin(WITH_FIGURES)]
    mine, theirs = timed[timed[who].isin(names)], timed[timed[who].isin(peers)]
    theirs = theirs.loc[theirs.groupby(list(on), sort=False, dropna=False)["median_ms"].idxmin()]
    both = mine.merge(theirs, on=list(on), suffixes=("", "_peer"))
    judged = [judge(peer, own) for own, peer in zip(_sides(both, ""), _sides(both, "_peer"), strict=True)]
    return both.assign(**{name: [each[name] for each in judged] for name in COLUMNS})


def side_by_side(frame: pd.DataFrame, on: Sequence[str], who: str, ours: str, peer: str) -> pd.DataFrame:
    """Put two beside each other wherever `ours` has a row, whatever came of it; the columns are those of `versus`."""
    both = frame[frame[who] == ours].merge(frame[frame[who] == peer], "left", list(on), suffixes=("", "_peer"))
    return both.merge(versus(frame, on, who, ours, [peer])[[*on, *COLUMNS]], "left", list(on))


def beside(rows: pd.DataFrame, on: Sequence[str], is_base: pd.Series) -> pd.DataFrame:
    """Put each row beside the first of its `on` that is a base and has figures.

    Added: COLUMNS, empty for that row itself and where a side has no figures; `base`, that row's index.
    """
    timed = rows["status"].isin(WITH_FIGURES)
    groups = rows.groupby(list(on), sort=False, dropna=False).ngroup()
    bases = groups.map({group: place for place, group in reversed([*groups[timed & is_base].items()])})
    judged = [
        judge(rows.loc[base], row) if timed[place] and pd.notna(base) and base != place else {}
        for (place, row), base in zip(rows.iterrows(), bases, strict=True)
    ]
    found = rows.drop(columns=list(COLUMNS), errors="ignore").join(pd.DataFrame(judged, rows.index, COLUMNS))
    return found.assign(base=bases)


def judge(base: Row, other: Row) -> dict[str, Any]:
    """Return COLUMNS for two rows of a frame: the time of `base` over that of `other`, whether `other` is faster."""
    found = _by_repeats(base, other) or _by_quartiles(base, other)
    if "unstable" in (base["status"], other["status"]):
        found["verdict"] = UNDECIDED
    return found | {"gain": interval(found)}


def peer_of(row: pd.Series) -> pd.Series:
    """Return the other side of a row of `versus`."""
    return row.filter(regex="_peer$").rename(lambda name: name.removesuffix("_peer"))


def shaded(both: pd.DataFrame) -> pd.DataFrame:
    """Give rows of `versus` the outcome by which a chart draws undecided ratios faint."""
    return both.assign(status=both["verdict"].map({UNDECIDED: "unstable"}).fillna("ok"))


def _sides(both: pd.DataFrame, suffix: str) -> list[dict[Any, Any]]:
    names = {f"{name}{suffix}": name for name in JUDGED}
    present = [name for name in names if name in both]
    return both[present].rename(columns=names).to_dict("records")


def _by_repeats(base: Row, other: Row) -> dict[str, Any] | None:
    spreads = [
        RepeatSpread(row["spread_log_std"], int(row["spread_degrees"]))
        for row in (base, other)
        if row.get("spread_degrees") is not None and not math.isnan(row["spread_degrees"])
    ]
    first, second = base.get("samples_of_repeats"), other.get("samples_of_repeats")
    if not spreads or not isinstance(first, list) or not isinstance(second, list):
        return None
    verdict = compare_samples(first, second, max(spreads, key=lambda spread: spread.log_std))
    if verdict.low is None or verdict.high is None:
        return None
    return {"ratio": 1 / verdict.ratio, "low": 1 / verdict.high, "high": 1 / verdict.low, "verdict": verdict.word}


def _by_quartiles(base: Row, other: Row) -> dict[str, Any]:
    ratio = base["median_ms"] / other["median_ms"]
    low, high = base["q1_ms"] / other["q3_ms"], base["q3_ms"] / other["q1_ms"]
    if max(ratio, 1 / ratio) <= SAMENESS and max(high, 1 / low) <= LEAST_WITHOUT_REPEATS:
        word = SAME
    elif max(ratio, 1 / ratio) < LEAST_WITHOUT_REPEATS or low <= 1 <= high:
        word = UNDECIDED
    else:
        word = FASTER if ratio > 1 else SLOWER
    return {"ratio": ratio, "low": low, "high": high, "verdict": word}
