"""Report ways to train on several ranks, for ddp, sharding and fsdp: steps and agreement.

Rows name their `way` and their `case`, the cell in words.
"""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.formats import Form, number, text
from pipeline.report.frame import WHOLE_STEP, in_order, with_figures
from pipeline.report.table import Table, filled
from pipeline.report.versus import COLUMNS, versus

Columns = Sequence[tuple[str, str, Form]]
CASE = "{size}, {precision}, {world_size} ranks, batch {batch_size_per_rank} a rank, context {context_length}"
MOSTLY = 0.5


def named(rows: pd.DataFrame, ways: pd.Series) -> pd.DataFrame:
    """Add the way and the case of rows."""
    return rows.assign(way=ways, case=[CASE.format(**row) for row in rows.to_dict("records")])


def whole_steps(rows: pd.DataFrame, order: Sequence[str], base: str) -> pd.DataFrame:
    """Return the whole steps by the host's clock, each beside the way `base` of its case.

    Added: COLUMNS of `versus`, empty for the base itself; `each`, the repeats.
    """
    steps = rows[(rows["phase"] == WHOLE_STEP) & (rows["clock"] == "host")]
    steps = in_order(steps, ["case", "way"], {"case": list(dict.fromkeys(steps["case"])), "way": order})
    others = [way for way in steps["way"].unique() if way != base]
    judged = versus(steps, ["case"], "way", others, [base]).set_index(["case", "way"])
    steps = steps.join(judged[list(COLUMNS)], on=["case", "way"])
    medians = [each if isinstance(each, list) else [] for each in steps["medians_ms"]]
    return steps.assign(each=[" / ".join(map(number, each)) if len(each) > 1 else None for each in medians])


def by_trust(steps: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the steps of each case with figures: first those that the host does not limit, with most repeats."""

    def doubt(steps: pd.DataFrame) -> tuple[bool, float, float]:
        by_host = steps["limited_by"].eq("host").mean() >= MOSTLY
        return bool(by_host), -float(steps["repeats"].max()), float(steps["status"].ne("ok").mean())

    return sorted((own for _, own in steps.groupby("case", sort=False) if len(with_figures(own))), key=doubt)


def table(name: str, steps: pd.DataFrame, base: str, columns: Columns, which: str = "") -> Table:
    """Write the steps of one case, a row a way; columns: further ones. Those without any value are left out.

    which: in words, what of the steps are told.
    """
    cards = {card for cards in steps["cards"].dropna() for card in cards.split(", ")}
    limits = list(steps["limited_by"].dropna().unique())
    case, repeats = steps["case"].iloc[0], steps["repeats"].max()
    limited = [f"limited by: {limits[0]}"] if len(limits) == 1 else []
    told = [f"repeats: {repeats:.0f}", f"GPU sets: {len(cards)}", *limited, *([which] if which else [])]
    caption = f"{case}; {'; '.join(told)}:"
    every: Columns = [
        ("way", "way", text),
        ("ms", "median_ms", number),
        ("each repeat (ms)", "each", text),
        (f"times as fast as {base} (interval)", "gain", text),
        ("verdict", "verdict", text),
        *([("limited by", "limited_by", text)] if len(limits) > 1 else []),
        ("exposed (ms)", "exposed_communication_ms", number),
        *columns,
    ]
    return Table(name, caption, steps, filled(steps, list(every)))


def agreement(steps: pd.DataFrame, differences: Sequence[str]) -> pd.Series:
    """Say of each way whether its weights are as near as rounding allows; None where they were not compared."""
    largest = steps[list(differences)].max(axis=1)
    words = (largest <= steps["weight_tolerance"]).map({True: "yes", False: "no"})
    return words.astype(object).where(largest.notna(), None)
