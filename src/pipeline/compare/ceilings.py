"""What two machines do at most, beside each other: the highest rates of the stage that measures them."""

from collections.abc import Callable

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.compare.runs import Record
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.section import ratio
from pipeline.report.section_rows import by_stage, section_rows
from pipeline.report.tables import markdown

TITLE = "What both machines do at most. ×: times the rate of {a}."


def ceilings_of_both(a: list[Record], b: list[Record], stages: Stages) -> pd.DataFrame:
    """Return ceiling and, as NAME_a and NAME_b, rate and words of what either run reached.

    words: the rate with its unit. Empty unless both runs measured some.
    """
    for stage in stages.values():
        if rates := stage.rates():
            runs = [section_rows(stage, stages, by_stage(records)) for records in (a, b)]
            return pd.DataFrame() if any(rows.empty for rows, *_ in runs) else _beside(rates, runs)
    return pd.DataFrame()


def _beside(rates: Callable[..., pd.DataFrame], runs: list[list[pd.DataFrame]]) -> pd.DataFrame:
    own = [rates(*run) for run in runs]
    names = pd.concat(own)[["ceiling"]].drop_duplicates()
    return names.merge(own[0], "left").merge(own[1], "left", on="ceiling", suffixes=("_a", "_b"))


def ceilings_table(ceilings: pd.DataFrame, machines: tuple[str, str]) -> Markdown:
    """Write the ceilings of two runs as a table, which calls the runs by their machines where these differ."""
    if ceilings.empty:
        return Markdown()
    a, b = machines if machines[0] != machines[1] else "AB"
    gains = (ceilings["rate_b"] / ceilings["rate_a"]).map(ratio, na_action="ignore")
    columns = {"ceiling": ceilings["ceiling"], a: ceilings["words_a"], b: ceilings["words_b"], "×": gains}
    return Markdown("\n\n").join([say(TITLE, a=a), markdown(pd.DataFrame(columns).fillna("–"))])
