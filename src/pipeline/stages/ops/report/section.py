"""The ops section: what each operation takes, ours beside torch's and Liger's."""

import pandas as pd

from pipeline.formulas.operations import WHOLE
from pipeline.report.outcomes import not_measured, nothing_measured
from pipeline.report.page_parts import MOST_TABLE_ROWS, Section, Table
from pipeline.report.section import number, percent
from pipeline.report.table_rows import ok
from pipeline.report.tables import number_cells

TITLE = "What do the operations between matrix products take?"
PROBLEM = ["op", "dtype", "size"]
METHOD = (
    "One call at a time, medians: on a GPU device time with the L2 cache flushed, else the host clock. The floor is "
    "the least time for the bytes, or products, that the operation cannot do without."
)


def build(rows: pd.DataFrame) -> Section:
    """Return the section of the ops stage, from all its rows."""
    whole = rows[rows["phase"] == WHOLE]
    timed = ok(whole)
    if timed.empty:
        return Section(TITLE, "", nothing_measured(rows))
    fastest = timed.loc[timed.groupby(PROBLEM, sort=False)["median_ms"].idxmin()].head(MOST_TABLE_ROWS)
    best = fastest.loc[fastest["floor_share_pct"].idxmax()]
    answer = (
        f"Closest to its floor comes {best['op']} of {best['size']} in {best['dtype']}: {best['impl']} reaches "
        f"{percent(best['floor_share_pct'] / 100)} of it, {number(best['gb_per_s'])} GB/s."
    )
    cells = pd.DataFrame(
        {
            **{name: fastest[name] for name in PROBLEM},
            "fastest": fastest["impl"],
            "ms": number_cells(fastest, "median_ms"),
            "of the floor": [percent(share / 100) for share in fastest["floor_share_pct"]],
        }
    )
    table = Table("The fastest implementation of each, forward and backward:", cells)
    return Section(TITLE, "", answer, parts=[table, not_measured(rows, "impl")], method=METHOD)
