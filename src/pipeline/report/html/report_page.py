"""Render the report as one HTML file: the write-up with interactive charts, and all rows of every stage."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pipeline.cells.stage import Stages
from pipeline.cells.stage_rows import stage_rows
from pipeline.report.all_rows import meanings, row_table
from pipeline.report.frame import Records, readable
from pipeline.report.html.markdown_page import to_html
from pipeline.report.html.page import Page, render
from pipeline.report.html.vega_lite import specification
from pipeline.report.told import Told, charts

CELLS = "cells"


def report_page(
    writeup: str, told: Sequence[Told], records: Mapping[str, Records], cells: pd.DataFrame, stages: Stages
) -> str:
    """Return the page: the write-up's Markdown, its charts by Vega-Lite, all rows of each stage, the cells."""
    keys = {f"{each.stage.name}/{chart.name}": chart for each in told for chart in charts(each)}
    drawn = {key: specification(chart) for key, chart in keys.items() if f"](figures/{key}.svg)" in writeup}
    tables = {
        name: row_table(readable(stage_rows(stages[name], found)), meanings(stages[name]))
        for name, found in records.items()
    }
    tables[CELLS] = row_table(cells, {})
    return render(Page(to_html(writeup, drawn), drawn, tables))
