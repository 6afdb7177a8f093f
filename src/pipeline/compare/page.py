"""Write a comparison as Markdown for a terminal, and as one HTML file to explore."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from pipeline.compare import history
from pipeline.compare.machines import ceilings, differences, models
from pipeline.compare.pair import Pair
from pipeline.compare.runs import Run
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import code, count, data_size, number, text, times
from pipeline.report.html.page import RowTable, page, row_table
from pipeline.report.markup import Markdown
from pipeline.report.section import Part, say
from pipeline.report.table import Columns, Table, same
from pipeline.report.versus import SAME
from pipeline.report.writeup import image

OF_ROW: Columns = [*same(text, "stage"), *same(code, "cell"), *same(text, "row")]
MEANINGS = {
    "A (ms)": "median of A; with repeats, the median of their medians",
    "B (ms)": "median of B; with repeats, the median of their medians",
    "B times as fast": "A's time over B's; below 1, B is slower",
    "low": "lower end of the interval",
    "high": "upper end of the interval",
}
OF_TIME = dict(zip(MEANINGS, ("median_ms_a", "median_ms_b", "ratio", "low", "high"), strict=True))
Parts = Sequence[str | Part]


def comparison(
    runs: Sequence[Run], prices: Mapping[str, float], pair: Pair | None, beside: Table | None, every: bool = False
) -> Parts:
    """Return what compares runs: models, ceilings, what differs; of two also row by row; beside: published values.

    every: all rows, and times that are the same too.
    """
    told = "**{name}**: {machine}, {source}"
    head = [say(told, name=run.name, machine=run.machine, source=run.source) for run in runs]
    parts = [models(runs, prices), ceilings(runs), differences(runs), *(_details(pair, every) if pair else [])]
    parts += [replace(beside, all_rows=every)] if beside else []
    return [Markdown("\\\n").join(head), *parts]


def explored(pair: Pair | None, beside: Table | None) -> dict[str, RowTable]:
    """Return the tables that a reader of the page filters: every time of two runs, every published value."""
    found = {}
    if pair is not None and len(pair.times):
        rows = pair.times[["stage", "cell", "row", "quantity", "verdict", *OF_TIME.values()]]
        found["times"] = row_table(rows.set_axis([*rows.columns[:5], *OF_TIME], axis="columns"), MEANINGS)
    return found | ({"published": row_table(beside.rows, {})} if beside else {})


def one_row(rows: pd.DataFrame) -> Parts:
    """Return what follows one row over runs."""
    return [say("**{row}**", row=rows["row"].iloc[0]), history.chart(rows), history.table(rows)]


def markdown(parts: Parts) -> Markdown:
    """Return parts as Markdown, without charts."""
    shown = [part for part in parts if not isinstance(part, Chart)]
    written = [part.markdown() if isinstance(part, Table) else part for part in shown if _is_shown(part)]
    return Markdown("\n\n".join(written))


def html(runs: Sequence[Run], parts: Parts, tables: Mapping[str, RowTable]) -> str:
    """Return parts as an HTML page."""
    title = say("# {names} compared", names=" and ".join(dict.fromkeys(run.machine for run in runs)))
    charts = {f"compare/{part.name}": part for part in parts if isinstance(part, Chart)}
    placed = [image("compare", part) if isinstance(part, Chart) else part for part in parts]
    return page(markdown([title, *placed]), charts, tables)


def _is_shown(part: str | Part) -> bool:
    return bool(part) if isinstance(part, str) else not part.is_empty


def _details(pair: Pair, every: bool) -> list[Part]:
    differing = pair.times if every else pair.times[pair.times["verdict"] != SAME]
    verdicts = pair.times["verdict"].value_counts(sort=False).rename("times").reset_index()
    of_times: Columns = [
        *OF_ROW,
        *same(text, "quantity"),
        ("A, ms", "median_ms_a", number),
        ("B, ms", "median_ms_b", number),
        ("B times as fast (interval)", "gain", text),
        *same(text, "verdict"),
        ("repeats A", "repeats_a", count),
        ("repeats B", "repeats_b", count),
    ]
    of_memory: Columns = [*OF_ROW, *same(text, "quantity"), ("A", "bytes_a", data_size), ("B", "bytes_b", data_size)]
    of_outcomes: Columns = [*OF_ROW, ("A", "status_a", text), ("B", "status_b", text), ("reason", "reason_b", text)]
    tables = [
        Table("verdicts", "Times by verdict:", verdicts, [*same(text, "verdict"), *same(count, "times")]),
        Table("times", "Times that differ, slowest first:", differing, of_times, every),
        Table("memory", "Memory peaks that differ:", pair.memory, [*of_memory, ("B over A", "ratio", times)], every),
        Table("outcomes", "Outcomes that changed:", pair.outcomes, of_outcomes, every),
        Table("only_a", "Only in A:", pair.only_in_a, [*OF_ROW, ("outcome", "status_a", text)], every),
        Table("only_b", "Only in B:", pair.only_in_b, [*OF_ROW, ("outcome", "status_b", text)], every),
    ]
    return [*([_ratios(pair)] if len(pair.times) else []), *tables]


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
        hover={"cell": "cell", "row": "row", **OF_TIME},
    )
