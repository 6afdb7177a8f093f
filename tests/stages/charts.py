"""What the tests of every stage's charts share: fields that rows lack, and parts of cells from which none is made."""

import json
from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.report.html.markdown_page import PlacedChart, to_html
from pipeline.report.html.page import Page, render

OUTCOMES = {"oom": "CUDA out of memory", "skipped": "needs a GPU", "failed": "ended by SIGKILL"}


def page_of(charts, path):
    """Write a page that shows charts, under one heading."""
    by_key = {f"stage/{chart.name}": chart for chart in charts}
    placed = [PlacedChart(key, "All charts", chart.title, chart.note) for key, chart in by_key.items()]
    path.write_text(render(Page(to_html("## All charts\n\nText.\n", placed), by_key)))
    return path


def missing_fields(chart):
    """Return the fields that a chart draws and its rows lack; rows must be what JSON can hold."""
    json.dumps(chart.rows, allow_nan=False)
    return set(_missing(chart.spec, {name for row in chart.rows for name in row}))


def _missing(view, known) -> Iterator[str]:
    if "data" in view:
        known = {name for row in view["data"]["values"] for name in row}
    for part in view.get("layer", [view] if "encoding" in view else []):
        own = {name for row in part["data"]["values"] for name in row} if "data" in part else known
        encodings = {**view.get("encoding", {}), **part.get("encoding", {})}
        yield from (field for field in _fields(encodings) if field not in own)


def _fields(value) -> Iterator[str]:
    if isinstance(value, Mapping):
        if isinstance(value.get("field"), str):
            yield value["field"]
        for part in value.values():
            yield from _fields(part)
    elif isinstance(value, list):
        for part in value:
            yield from _fields(part)


def faults_of_parts(make_charts, axes, rows):
    """Make charts of each cell alone and of cells that all failed; return the fields that they lack, by part."""
    parts = {str(key): cell for key, cell in rows.groupby(axes, sort=False)}
    for status, reason in OUTCOMES.items():
        numbers = [name for name in rows.select_dtypes("number") if name not in axes and "setting" not in name]
        parts[status] = rows.assign(status=status, reason=reason, **dict.fromkeys(numbers, np.nan))
    return {
        name: lacking
        for name, part in parts.items()
        for chart in make_charts(part)
        if (lacking := missing_fields(chart))
    }
