"""What two machines do at most, beside each other: the tables of the stage ceilings."""

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.compare.runs import Record
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import ratio
from pipeline.report.section_rows import by_stage, section_rows
from pipeline.report.table_rows import ok
from pipeline.report.tables import markdown
from pipeline.stages.ceilings.report.selection import highest, written

STAGE = "ceilings"
TITLE = "What both machines do at most. ×: times the rate of {a}."


def ceilings_of_both(a: list[Record], b: list[Record], stages: Stages) -> pd.DataFrame:
    """Return ceiling, quantity, rate_a and rate_b of what either run reached; empty unless both measured some."""
    tables = [_reached(records, stages) for records in (a, b)]
    if any(table.empty for table in tables):
        return pd.DataFrame()
    names = pd.concat(tables)[["ceiling", "quantity"]].drop_duplicates()
    return names.merge(tables[0], "left").merge(tables[1], "left", on=[*names], suffixes=("_a", "_b"))


def _reached(records: list[Record], stages: Stages) -> pd.DataFrame:
    [rows] = section_rows(stages[STAGE], stages, by_stage(records))
    return pd.DataFrame() if rows.empty else ok(highest(rows))[["ceiling", "quantity", "rate"]]


def ceilings_table(ceilings: pd.DataFrame, machines: tuple[str, str]) -> Markdown:
    """Write the ceilings of two runs as a table, which calls the runs by their machines where these differ."""
    if ceilings.empty:
        return Markdown()
    a, b = machines if machines[0] != machines[1] else "AB"
    rates = {
        name: [
            written(rate, quantity) if pd.notna(rate) else "–"
            for rate, quantity in zip(ceilings[column], ceilings["quantity"], strict=True)
        ]
        for name, column in ((a, "rate_a"), (b, "rate_b"))
    }
    gains = (ceilings["rate_b"] / ceilings["rate_a"]).map(ratio, na_action="ignore").fillna("–")
    table = pd.DataFrame({"ceiling": ceilings["ceiling"], **rates, "×": gains})
    return Markdown("\n\n").join([say(TITLE, a=a), markdown(table)])
