"""Write a comparison as Markdown for a terminal, and as one HTML file to explore."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from pipeline.compare.differences import differences
from pipeline.compare.machines import ceilings_table, models, models_table
from pipeline.compare.pair import Pair
from pipeline.compare.runs import Run
from pipeline.report.all_rows import row_table
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import code, count, data_size, interval, number, text, times
from pipeline.report.html.markdown_page import to_html
from pipeline.report.html.page import Page, render
from pipeline.report.html.vega_lite import specification
from pipeline.report.markup import Markdown
from pipeline.report.section import say
from pipeline.report.table import Columns, Table
from pipeline.report.versus import SAME

KEY = "compare/ratios"
OF_ROW: Columns = [("stage", "stage", text), ("cell", "cell", code), ("row", "row", text)]
MEANINGS = {
    "A (ms)": "median of A; with repeats, the median of their medians",
    "B (ms)": "median of B; with repeats, the median of their medians",
    "B times as fast": "A's time over B's; below 1, B is slower",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
}


def machines(runs: Sequence[Run], prices: Mapping[str, float]) -> Markdown:
    """Return what compares machines: models, ceilings, what differs; for any number of runs."""
    names = [run.name for run in runs]
    head = [
        say("**{name}**: {machine}, {source}", name=run.name, machine=run.machine, source=run.source) for run in runs
    ]
    tables = [models_table(models(runs, prices), names), ceilings_table(runs), differences(runs)]
    return Markdown("\n\n").join(
        [Markdown("\\\n").join(head), *(table.markdown() for table in tables if len(table.rows))]
    )


def details(pair: Pair, every: bool) -> Markdown:
    """Return what differs row by row between two runs; every: all rows, and times that are the same too."""
    differing = pair.times if every else pair.times[pair.times["verdict"] != SAME]
    shown = differing.assign(gain=[interval(row) for _, row in differing.iterrows()])
    of_times: Columns = [
        *OF_ROW,
        ("quantity", "quantity", text),
        ("A, ms", "median_ms_a", number),
        ("B, ms", "median_ms_b", number),
        ("B times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("repeats A", "repeats_a", count),
        ("repeats B", "repeats_b", count),
    ]
    of_memory: Columns = [
        *OF_ROW,
        ("quantity", "quantity", text),
        ("A", "bytes_a", data_size),
        ("B", "bytes_b", data_size),
        ("B over A", "ratio", times),
    ]
    of_outcomes: Columns = [*OF_ROW, ("A", "status_a", text), ("B", "status_b", text), ("reason", "reason_b", text)]
    tables = [
        Table(
            "verdicts", "Times by verdict:", _counts(pair), [("verdict", "verdict", text), ("times", "times", count)]
        ),
        Table("times", "Times that differ, slowest first:", shown, of_times),
        Table("memory", "Memory peaks that differ:", pair.memory, of_memory),
        Table("outcomes", "Outcomes that changed:", pair.outcomes, of_outcomes),
        Table("only_a", "Only in A:", pair.only_in_a, [*OF_ROW, ("outcome", "status", text)]),
        Table("only_b", "Only in B:", pair.only_in_b, [*OF_ROW, ("outcome", "status", text)]),
    ]
    return Markdown("\n\n").join(replace(table, all_rows=every).markdown() for table in tables if len(table.rows))


def _counts(pair: Pair) -> pd.DataFrame:
    return pair.times["verdict"].value_counts(sort=False).rename("times").reset_index()


def html(runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None) -> str:
    """Return the comparison as an HTML page."""
    title = say("# {names} compared", names=" and ".join(dict.fromkeys(run.machine for run in runs)))
    blocks: list[str] = [title, machines(runs, prices)]
    if pair is None or pair.times.empty:
        return render(Page(to_html("\n\n".join(blocks))))
    chart, table = _ratios(pair), _rows(pair)
    blocks += [f"## Every time\n\n![{chart.title}](figures/{KEY}.svg)", details(pair, every=False)]
    drawn = {KEY: specification(chart)}
    return render(Page(to_html("\n\n".join(blocks), drawn), drawn, {"times": row_table(table, MEANINGS, "verdict")}))


def _rows(pair: Pair) -> pd.DataFrame:
    names = ["stage", "cell", "row", "quantity", "verdict"]
    numbers = pair.times[["median_ms_a", "median_ms_b", "ratio", "low", "high"]].set_axis(
        list(MEANINGS), axis="columns"
    )
    return pd.concat([pair.times[names], numbers], axis="columns")


def _ratios(pair: Pair) -> Chart:
    rows = pair.times.assign(line=pair.times["stage"] + ", " + pair.times["quantity"])
    return Chart(
        "ratios",
        "How many times as fast B is, one point per time that both have",
        rows.sort_values(["stage", "quantity"], kind="stable"),
        "strip",
        Axis("ratio", "B times as fast", log=True),
        Axis("line"),
        "verdict",
        limits=[Limit(1.0, "the same")],
        hover={
            "cell": "cell",
            "row": "row",
            "A (ms)": "median_ms_a",
            "B (ms)": "median_ms_b",
            "from": "low",
            "to": "high",
        },
    )
