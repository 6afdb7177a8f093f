"""What rows without a figure say in a section, and how far apart two figures must lie to act on them."""

from collections.abc import Sequence

import pandas as pd

from pipeline.instruments.sampling.verdict import FASTER
from pipeline.report.reasons import without_own_numbers
from pipeline.report.repeats import verdict
from pipeline.report.section import count, counted, listing
from pipeline.report.table_rows import has_figures
from pipeline.report.tables import outcome

WORTH_IT = 1.1
# The share of a step in which the GPU idles from which on the host counts as its limit.
IDLE_PCT = 20.0
MOST_REASONS = 2


def nothing_measured(rows: pd.DataFrame) -> str:
    """Say that no row has a figure, and the most frequent reason."""
    reasons = rows["reason"].dropna()
    return f"Nothing was measured: {reasons.mode()[0]}." if len(reasons) else "Nothing was measured."


def not_measured(rows: pd.DataFrame, by: str) -> str:
    """Say in a sentence how many rows ran out of memory or were wrong, and mainly why; else nothing.

    What the machine lacks, and which figures are unstable, the page says once for all stages.
    by: the column that tells best which rows they are, such as the implementation.
    """
    failed = rows[~has_figures(rows["status"]) & (rows["status"] != "skipped")]
    if failed.empty:
        return ""
    alike = failed.assign(reason=without_own_numbers(failed["reason"].astype(object).fillna("")))
    groups = sorted(alike.groupby(["status", "reason"], sort=False), key=lambda group: -len(group[1]))
    told, left = groups[:MOST_REASONS], sum(len(group) for _, group in groups[MOST_REASONS:])
    whys = [f"{_times(group, groups)}{_why(*key)} ({listing(group[by].unique())})" for key, group in told]
    whys += [f"{count(left)} for other reasons"] if left else []
    are = "is" if len(failed) == 1 else "are"
    return f"{count(len(failed))} of {counted(len(rows), 'figure')} {are} missing: {'; '.join(whys)}."


def _why(status: str, reason: str) -> str:
    why = reason.partition(". ")[0].rstrip(".")
    return why if status == "oom" and why else f"{outcome(status, None)}, {why}".rstrip(" ,")


def _times(group: pd.DataFrame, groups: Sequence[object]) -> str:
    return f"{count(len(group))} times " if len(group) > 1 and len(groups) > 1 else ""


def clear_gain(slower: pd.Series, faster: pd.Series) -> float | None:
    """Return how many times faster one row is than another, where that is worth acting on.

    That is WORTH_IT times at least, of two stable figures, and by the verdict faster; without repeats to judge by, the
    quartiles must not overlap. Both have median_ms, q1_ms and q3_ms; None where the gain is not clear.
    """
    gain = slower["median_ms"] / faster["median_ms"]
    if not gain >= WORTH_IT or "unstable" in (slower.get("status"), faster.get("status")):
        return None
    word = verdict(slower, faster).word
    clear = faster["q3_ms"] < slower["q1_ms"] if word is None else word == FASTER
    return float(gain) if clear else None
