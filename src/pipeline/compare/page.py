"""A comparison of two runs as one HTML file: its text, every ratio in a chart, and every time to sort and filter."""

import re

import pandas as pd

from pipeline.compare.ceilings import ceilings_table
from pipeline.compare.judge import Comparison
from pipeline.compare.models import models_table
from pipeline.compare.text import comparison_parts, summary, time_table, verdict_words
from pipeline.compare.times import UNJUDGED, WITHIN
from pipeline.report.intervals import FASTER, SAME, SLOWER, UNDECIDED
from pipeline.report.all_rows import RowTable, row_table
from pipeline.report.charts import DASHED, IDLE_COLOUR, NEUTRAL, POINTS, Chart, axis, bars_axis, coloured, mark, tooltip
from pipeline.report.figures import BLUE, VERMILION
from pipeline.report.html.markdown_page import PlacedChart, to_html
from pipeline.report.html.page import Page, render
from pipeline.report.markup import Markdown
from pipeline.report.page_parts import say
from pipeline.report.table_rows import records

COLOURS = {SLOWER: VERMILION, UNDECIDED: NEUTRAL, FASTER: BLUE} | dict.fromkeys((UNJUDGED, SAME, WITHIN), IDLE_COLOUR)
KEY, HEADING = "compare/ratios", "Every time"
MEANINGS = {
    "A (ms)": "median of A, over its repeats their geometric mean",
    "B (ms)": "median of B, over its repeats their geometric mean",
    "B / A": "above 1 B is slower",
    "low": "lower end of the interval, or what the quartiles allow",
    "high": "upper end of it",
    "judged by": "95% interval of the ratio, or a rule of thumb by quartiles",
}


def comparison_page(comparison: Comparison, name_a: str, name_b: str) -> str:
    """Return a comparison as an HTML page, from whatever runs it is."""
    charts = {} if comparison.timed.empty else {KEY: _ratios(comparison)}
    tables = {"times": _times(comparison)} if charts else {}
    machine_a, machine_b = comparison.machines
    head = say(
        "# {title} compared\n\n**A** {a}, {machine_a}\\\n**B** {b}, {machine_b}\n\n{models}\n\n{ceilings}\n\n{all}",
        title=f"{machine_a} and {machine_b}" if machine_a != machine_b else f"Two runs of {machine_a}",
        a=name_a,
        b=name_b,
        machine_a=machine_a,
        machine_b=machine_b,
        models=models_table(comparison.models, comparison.machines),
        ceilings=ceilings_table(comparison.ceilings, comparison.machines),
        all=summary(comparison),
    )
    times = [f"## {HEADING}\n\nAbove a ratio of 1 B is slower."] if charts else []
    parts = [re.sub(r"^###", "##", part) for part in comparison_parts(comparison)]
    placed = [PlacedChart(key, HEADING, chart.title, chart.note) for key, chart in charts.items()]
    text = "\n\n".join([head, *times, *filter(None, parts)])
    return render(Page(to_html(Markdown(text), placed), charts, tables=tables))


def _times(comparison: Comparison) -> RowTable:
    """Return all times that both runs have, with numbers as numbers."""
    timed = comparison.timed
    words = time_table(comparison, show_all=True).loc[timed.index, ["stage", "cell", "row", "verdict", "judged by"]]
    numbers = timed[["median_a", "median_b", "ratio", "low", "high"]].set_axis(list(MEANINGS)[:5], axis="columns")
    return row_table(pd.concat([words, numbers], axis="columns"), MEANINGS, told_by="verdict")


def _ratios(comparison: Comparison) -> Chart:
    """Draw each ratio of B to A, one line per stage and quantity, in the colour of its verdict."""
    timed, words = comparison.timed, verdict_words(comparison.tolerance)
    drawn = timed[["stage", "cell", "row", "quantity", "median_a", "median_b", "ratio", "low", "high", "verdict"]]
    drawn = drawn.assign(line=drawn["stage"] + ", " + drawn["quantity"], verdict=drawn["verdict"].map(words))
    looks = {word: COLOURS[verdict] for verdict, word in words.items() if verdict in set(timed["verdict"])}
    x, y = axis("ratio", "B / A", log=True), bars_axis("line", list(drawn["line"]))
    told = tooltip(
        stage="stage",
        cell="cell",
        row="row",
        median_a="A (ms)",
        median_b="B (ms)",
        ratio="B / A",
        low="from",
        high="to",
        verdict="verdict",
    )
    faint = {"condition": {"param": "shown", "value": 0.6}, "value": 0.04}
    points = mark(
        "point", {**POINTS, "size": 50}, x=x, y=y, color=coloured("verdict", looks), opacity=faint, tooltip=told
    )
    by_legend = [{"name": "shown", "select": {"type": "point", "fields": ["verdict"]}, "bind": "legend"}]
    spec = {
        "height": {"step": 26},
        "layer": [
            {"data": {"values": [{"same": 1}]}, **mark("rule", DASHED, x={**x, "field": "same"})},
            {"params": by_legend, **points},
        ],
    }
    return Chart("ratios", "Time of B over that of A, one point per time that both have", spec, records(drawn))
