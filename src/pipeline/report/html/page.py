"""Render a page as one HTML file that needs no network: text, charts, tables of rows that a reader filters."""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report import drawing
from pipeline.report.html.markdown_page import Body

HERE = Path(__file__).parent
DIGITS, LONGEST_TEXT = 6, 400
RowTable = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Page:
    """What a page holds: charts (Vega-Lite) by their keys in the body, tables of rows by name."""

    body: Body
    charts: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, RowTable] = field(default_factory=dict)


def row_table(rows: pd.DataFrame, meanings: Mapping[str, str]) -> RowTable:
    """Return rows as plain data: `columns` with their values, what is the `same` in all rows, `meanings` of columns.

    Numbers have DIGITS; lists, such as samples, and empty columns are left out.
    """
    is_list = rows.map(lambda value: isinstance(value, list)).any()
    short = rows.loc[:, ~is_list].map(_short, na_action="ignore").dropna(axis="columns", how="all")
    values = {name: json.loads(short[name].to_json(orient="values")) for name in short}
    same = [name for name in short if len(short) > 1 and short[name].nunique(dropna=False) == 1]
    return {
        "columns": {name: found for name, found in values.items() if name not in same},
        "same": {name: values[name][0] for name in same},
        "meanings": {name: text for name, text in meanings.items() if name in short},
    }


def render(page: Page) -> str:
    """Return the page as HTML, the same bytes for the same page.

    Its content security policy lets run only the page's own scripts, told by their digests, and load nothing.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    library = _library() if page.charts else ""
    charts, tables = (json.dumps(each, allow_nan=False) for each in (page.charts, page.tables))
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        page=page,
        style=Markup(style),
        script=Markup(script),
        digests=[_base64(hashlib.sha256(text.encode()).digest()) for text in (script, library)],
        data={
            name: _base64(gzip.compress(text.encode(), mtime=0))
            for name, text in {"library": library, "charts": charts, "tables": tables}.items()
        },
    )


_library = cache(drawing.library)  # to bundle it takes two seconds


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return f"{value[:LONGEST_TEXT]}…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
