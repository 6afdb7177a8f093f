"""What rows without a figure say in a section, and how far apart two figures must lie to act on them."""

import pandas as pd

from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.reasons import without_own_numbers
from pipeline.report.section import count, counted, listing
from pipeline.report.table_rows import has_figures
from pipeline.report.tables import outcome

WORTH_IT = 1.1


def nothing_measured(rows: pd.DataFrame) -> Markdown:
    """Say that no row has a figure, and the most frequent reason."""
    reasons = rows["reason"].dropna()
    return say("Nothing was measured{why}.", why=f": {reasons.mode()[0]}" if len(reasons) else "")


def not_measured(rows: pd.DataFrame, by: str) -> Markdown:
    """Say in a sentence or two how many rows have no figure, or an unstable one, and mainly why; else nothing.

    by: the column that tells best which rows they are, such as the implementation.
    """
    failed, unstable = rows[~has_figures(rows["status"])], rows[rows["status"] == "unstable"]
    sentences = []
    if len(failed):
        alike = failed.assign(reason=without_own_numbers(failed["reason"].astype(object).fillna("")))
        (status, reason), main = max(alike.groupby(["status", "reason"], sort=False), key=lambda group: len(group[1]))
        sentences.append(
            say(
                "{failed} of {figures} were not measured, {most} ({who}): {why}.",
                failed=count(len(failed)),
                figures=counted(len(rows), "figure"),
                most="all alike" if len(main) == len(failed) else f"most of them, {count(len(main))}, alike",
                who=listing(main[by].unique()),
                why=f"{outcome(status, None)}, {reason.partition('. ')[0]}".rstrip(" ,."),
            )
        )
    if len(unstable):
        who = listing(unstable[by].unique())
        sentences.append(say("Unstable: {n}, of {who}.", n=counted(len(unstable), "figure"), who=who))
    return Markdown(" ").join(sentences)


def clear_gain(slower: pd.Series, faster: pd.Series) -> float | None:
    """Return how many times faster one row is than another, where that is WORTH_IT and their quartiles do not overlap.

    Both have median_ms, q1_ms and q3_ms; None where the gain is not clear.
    """
    gain = slower["median_ms"] / faster["median_ms"]
    return float(gain) if gain >= WORTH_IT and faster["q3_ms"] < slower["q1_ms"] else None
