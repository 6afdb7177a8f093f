"""Write a comparison as Markdown for a terminal, and as one HTML file to explore."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from pipeline.compare import history
from pipeline.compare.machines import ceilings, differences, models
from pipeline.compare.pair import Pair
from pipeline.compare.runs import Run
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.drawing import specification
from pipeline.report.formats import code, count, data_size, intervals, number, text, times
from pipeline.report.html.markdown_page import to_html
from pipeline.report.html.page import Page, render, row_table
from pipeline.report.markup import Markdown
from pipeline.report.section import say
from pipeline.report.table import Columns, Table, same
from pipeline.report.versus import SAME

OF_ROW: Columns = [*same(text, "stage"), *same(code, "cell"), *same(text, "row")]
MEANINGS = {
    "A (ms)": "median of A; with repeats, the median of their medians",
    "B (ms)": "median of B; with repeats, the median of their medians",
    "B times as fast": "A's time over B's; below 1, B is slower",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
}
OF_TIME = ["median_ms_a", "median_ms_b", "ratio", "low", "high"]


def machines(runs: Sequence[Run], prices: Mapping[str, float]) -> Markdown:
    """Return what compares machines: models, ceilings, what differs; for any number of runs."""
    told = "**{name}**: {machine}, {source}"
    head = [say(told, name=run.name, machine=run.machine, source=run.source) for run in runs]
    return _joined(Markdown("\\\n").join(head), models(runs, prices), ceilings(runs), differences(runs))


def details(pair: Pair, every: bool) -> Markdown:
    """Return what differs row by row between two runs; every: all rows, and times that are the same too."""
    differing = pair.times if every else pair.times[pair.times["verdict"] != SAME]
    verdicts = pair.times["verdict"].value_counts(sort=False).rename("times").reset_index()
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
    of_memory: Columns = [*OF_ROW, *same(text, "quantity"), ("A", "bytes_a", data_size), ("B", "bytes_b", data_size)]
    of_outcomes: Columns = [*OF_ROW, ("A", "status_a", text), ("B", "status_b", text), ("reason", "reason_b", text)]
    tables = [
        Table("verdicts", "Times by verdict:", verdicts, [*same(text, "verdict"), *same(count, "times")]),
        Table("times", "Times that differ, slowest first:", differing.assign(gain=intervals(differing)), of_times),
        Table("memory", "Memory peaks that differ:", pair.memory, [*of_memory, ("B over A", "ratio", times)]),
        Table("outcomes", "Outcomes that changed:", pair.outcomes, of_outcomes),
        Table("only_a", "Only in A:", pair.only_in_a, [*OF_ROW, ("outcome", "status_a", text)]),
        Table("only_b", "Only in B:", pair.only_in_b, [*OF_ROW, ("outcome", "status_b", text)]),
    ]
    return _joined(*(replace(table, all_rows=every) for table in tables))


def comparison(
    runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None, beside: Table | None, every: bool
) -> str:
    """Return the comparison as Markdown; beside: the published values to show with it."""
    parts: list[str | Table] = [machines(runs, prices), *([details(pair, every)] if pair else [])]
    return _joined(*parts, *([replace(beside, all_rows=every)] if beside else []))


def comparison_page(runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None, beside: Table | None) -> str:
    """Return the comparison as an HTML page, with every time and every published value to explore."""
    title = say("# {names} compared", names=" and ".join(dict.fromkeys(run.machine for run in runs)))
    tables = {}
    parts: list[str | Table] = [title, machines(runs, prices)]
    charts = []
    if pair is not None and len(pair.times):
        charts = [_ratios(pair)]
        parts += [f"## Every time\n\n{_place(charts[0])}", details(pair, every=False)]
        rows = pair.times[["stage", "cell", "row", "quantity", "verdict", *OF_TIME]]
        tables["times"] = row_table(rows.rename(columns=dict(zip(OF_TIME, MEANINGS, strict=True))), MEANINGS)
    if beside is not None:
        parts += ["## Published values", beside]
        tables["published"] = row_table(beside.rows, {})
    return _page(parts, charts, tables)


def history_text(rows: pd.DataFrame) -> Markdown:
    """Return a history as Markdown."""
    return _joined(say("**{row}**", row=rows["row"].iloc[0]), history.table(rows))


def history_page(rows: pd.DataFrame) -> str:
    """Return a history as an HTML page: the times drawn over the runs, and a line a run."""
    chart = history.chart(rows)
    return _page(["# One row over runs", _place(chart), history.table(rows)], [chart], {})


def _joined(*parts: str | Table) -> Markdown:
    written = [part.markdown() if isinstance(part, Table) else part for part in parts if not _is_empty(part)]
    return Markdown("\n\n".join(written))


def _is_empty(part: str | Table) -> bool:
    return part.is_empty if isinstance(part, Table) else not part


def _place(chart: Chart) -> str:
    return f"![{Markdown.escape(chart.title)}](figures/compare/{chart.name}.svg)"


def _page(parts: Sequence[str | Table], charts: Sequence[Chart], tables: Mapping) -> str:
    drawn = {f"compare/{chart.name}": specification(chart) for chart in charts}
    return render(Page(to_html(_joined(*parts), drawn), drawn, tables))


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
        hover={name: name for name in ("cell", "row")} | dict(zip(MEANINGS, OF_TIME, strict=True)),
    )
