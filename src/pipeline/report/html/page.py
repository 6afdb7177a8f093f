"""Turn Markdown into one HTML file that works offline, with charts and tables of rows to filter."""

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markupsafe import Markup

from pipeline.report import drawing
from pipeline.report.chart import Chart
from pipeline.report.markup import anchor

HERE = Path(__file__).parent
DIGITS, LONGEST_TEXT = 6, 400
AS_JSON = json.JSONEncoder(allow_nan=False).encode
RowTable = Mapping[str, Mapping[str, Any]]
# A link from the Markdown to a table of a stage, in results/ or in a snapshot.
TABLE_LINK = re.compile(r"(?:\.\./results|tables)/([\w-]+)/([^/]+)\.csv")
FIGURE_LINK = re.compile(r"figures/([\w-]+/[\w-]+)\.svg")
CHART = Markup(
    '<figure class="chart" data-chart="{key}"><figcaption>{title}</figcaption>'
    '<div class="pickers"></div><div class="plot" role="img" aria-label="{title}"></div></figure>\n'
)
# Text that must not wrap in a table cell: an interval, a number with its unit, a name that ends with a number.
UNBROKEN = re.compile(r"\([\d.]+ to [\d.]+\)|\d (?:s|ms|µs|kB|MB|GB)\b|[A-Za-z]-\d")
NO_BREAK = str.maketrans(" -", "\u00a0\u2011")
LONE_CHART = re.compile(r"<p>(<figure .*?</figure>\n)</p>")


class Body(NamedTuple):
    """Rendered Markdown: its title, its HTML, its second-level headings by anchor."""

    title: str
    html: Markup
    contents: Sequence[tuple[str, str]]


def page(text: str, charts: Mapping[str, Chart], tables: Mapping[str, RowTable]) -> str:
    """Return a Markdown text as an HTML page; the same input gives the same bytes.

    charts: by key, `stage/name`; they replace their drawings. tables: by name, made by `row_table`.
    The page's content security policy allows only its own scripts, by their digests, and lets it load nothing.
    """
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    library = drawing.library() if charts else ""
    specifications = {key: drawing.specification(chart) for key, chart in charts.items()}
    packed = {"library": library, "charts": AS_JSON(specifications), "tables": AS_JSON(tables)}
    environment = Environment(loader=FileSystemLoader(HERE), undefined=StrictUndefined, autoescape=True)
    return environment.get_template("page.html.j2").render(
        body=to_html(text, charts),
        tables=[*tables],
        style=Markup(style),
        script=Markup(script),
        digests=[_base64(hashlib.sha256(each.encode()).digest()) for each in (script, library)],
        data={name: _base64(gzip.compress(each.encode(), mtime=0)) for name, each in packed.items()},
    )


def row_table(rows: pd.DataFrame, meanings: Mapping[str, str]) -> RowTable:
    """Return rows as plain data: `columns` with their values, columns that are the `same` in all rows, `meanings`.

    Numbers are rounded to DIGITS; lists, such as samples, and empty columns are left out.
    """
    is_list = rows.map(lambda value: isinstance(value, list)).any()
    short = rows.loc[:, ~is_list].map(_shortened, na_action="ignore").dropna(axis="columns", how="all")
    values = {name: json.loads(short[name].to_json(orient="values")) for name in short}
    same = [name for name in short if len(short) > 1 and short[name].nunique(dropna=False) == 1]
    return {
        "columns": {name: found for name, found in values.items() if name not in same},
        "same": {name: values[name][0] for name in same},
        "meanings": {name: text for name, text in meanings.items() if name in short},
    }


def to_html(text: str, charts: Collection[str] = ()) -> Body:
    """Render Markdown, showing HTML in it as text. A chart replaces the drawing with its key, `stage/name`.

    Links to a stage's tables become links to its rows in this page.
    """

    def image(self: RendererHTML, tokens: Sequence[Token], place: int, options: Any, env: Any) -> str:
        link = FIGURE_LINK.fullmatch(str(tokens[place].attrGet("src")))
        if link is None or link[1] not in charts:
            return self.image(tokens, place, options, env)
        return str(CHART.format(key=link[1], title=_plain(tokens[place])))

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    parser.add_render_rule("image", image)
    tokens = parser.parse(text)
    headings = [(token, inline) for token, inline in pairwise(tokens) if token.type == "heading_open"]
    for token, inline in headings:
        token.attrSet("id", anchor(inline.content))
    for link in (part for token in tokens for part in token.children or () if part.type == "link_open"):
        if table := TABLE_LINK.fullmatch(str(link.attrGet("href"))):
            link.attrSet("href", f"#rows-{table[1]}/{table[2]}")
    for cell in (inline for token, inline in pairwise(tokens) if token.type in ("th_open", "td_open")):
        for part in cell.children or ():
            part.content = UNBROKEN.sub(lambda found: found[0].translate(NO_BREAK), part.content)
    html = LONE_CHART.sub(r"\1", parser.renderer.render(tokens, parser.options, {}))
    title, *_ = [*(_plain(inline) for token, inline in headings if token.tag == "h1"), ""]
    contents = [(anchor(inline.content), _plain(inline)) for token, inline in headings if token.tag == "h2"]
    return Body(title, Markup(html), contents)


def _plain(token: Token) -> str:
    """Return text without its markup."""
    return "".join(part.content for part in token.children or ())


def _shortened(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return f"{value[:LONGEST_TEXT]}…" if isinstance(value, str) and len(value) > LONGEST_TEXT else value


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
