"""The report as one HTML file: the write-up's text with interactive charts, and all rows of every stage."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from pipeline.cells.disk import write_text
from pipeline.errors import UserError
from pipeline.report.all_rows import row_table
from pipeline.report.html.markdown_page import PlacedChart, to_html
from pipeline.report.html.page import Page, render
from pipeline.report.html.stage_parts import StageParts, from_json
from pipeline.report.table_rows import read_rows
from pipeline.report.written_section import HTML_SUFFIX

CELLS = "cells"


def write_report_page(writeup: Path, sections: Sequence[Path], cells: Sequence[Path], out: Path) -> None:
    """Write the page from a write-up, the parts that lie beside the sections, and the tables of cells.

    Figures are looked for where the write-up shows them. Raises UserError, one line, for what cannot be read.
    """
    parts = [_read_parts(path.with_suffix(HTML_SUFFIX)) for path in sections]
    charts = {f"{each.stage}/{chart.name}": (each, chart) for each in parts for chart in each.charts}
    placed = [PlacedChart(key, each.title, chart.title, chart.note) for key, (each, chart) in charts.items()]
    body = to_html(_read(writeup), placed)
    tables = {each.stage: each.rows for each in parts}
    if cells:
        tables[CELLS] = row_table(pd.concat(map(read_rows, cells), ignore_index=True), {})
    page = Page(
        body=body,
        charts={key: chart for key, (_, chart) in charts.items()},
        drawings={key: _read(writeup.parent / f"figures/{key}.svg") for key in body.drawings},
        tables=tables,
    )
    write_text(out, render(page))


def _read_parts(path: Path) -> StageParts:
    try:
        return from_json(_read(path))
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{path} is not what a section leaves for the page: write the section again") from None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
