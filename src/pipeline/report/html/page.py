"""Render a page as one HTML file that needs no network: text, charts, tables of rows."""

import base64
import gzip
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report.all_rows import RowTable
from pipeline.report.html.markdown_page import Body
from pipeline.report.html.vega import library

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "page.html.j2", "page.css", "page.js"


@dataclass(frozen=True)
class Page:
    """What a page holds: charts (Vega-Lite) by their keys in the body, tables of rows by name."""

    body: Body
    charts: Mapping[str, Any] = field(default_factory=dict)
    tables: Mapping[str, RowTable] = field(default_factory=dict)


def render(page: Page) -> str:
    """Return the page as HTML, the same bytes for the same page.

    Its content security policy lets run only the page's own scripts, told by their digests, and load nothing.
    """
    vega, script = library.script() if page.charts else "", (HERE / SCRIPT).read_text(encoding="utf-8")
    data = {
        "vega": vega,
        "charts": json.dumps(page.charts, allow_nan=False),
        "tables": json.dumps({name: asdict(table) for name, table in page.tables.items()}, allow_nan=False),
    }
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True)
    return environment.get_template(TEMPLATE).render(
        page=page,
        style=Markup((HERE / STYLE).read_text(encoding="utf-8")),
        script=Markup(script),
        digests=[_digest(text) for text in (script, vega)],
        data={name: _packed(text) for name, text in data.items()},
    )


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
