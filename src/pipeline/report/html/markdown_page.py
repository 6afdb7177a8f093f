"""Render Markdown as HTML: headings with anchors, tables that scroll, charts in place of drawings."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from pipeline.report.markup import anchor

# Where the Markdown links to a stage's table, be it beside the page or in a snapshot.
TABLE_LINK = re.compile(r"(?:\.\./results|tables)/([\w-]+)/([^/]+)\.csv")
FIGURE_LINK = re.compile(r"figures/([\w-]+/[\w-]+)\.svg")
CHART = Markup(
    '<figure class="chart" data-chart="{key}"><figcaption>{title}</figcaption>'
    '<div class="pickers"></div><div class="plot" role="img" aria-label="{title}"></div></figure>\n'
)


@dataclass(frozen=True)
class Body:
    """A rendered page: its title, its HTML, its second-level headings by anchor."""

    title: str
    html: Markup
    contents: Sequence[tuple[str, str]]


def to_html(text: str, charts: Collection[str] = ()) -> Body:
    """Render Markdown in which HTML is text. A chart takes the place of the drawing with its key, `stage/name`.

    Links to tables become links to the rows of that stage in this page.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(text)
    contents = _headings(tokens)
    html = parser.renderer.render(_with_charts(tokens, charts), parser.options, {})
    title = next((_plain(text) for start, text in pairwise(tokens) if start.tag == "h1"), "")
    return Body(title, Markup(html), contents)


def _headings(tokens: Sequence[Token]) -> list[tuple[str, str]]:
    """Give headings their anchors and links to tables their place in the page; return the second-level headings."""
    found = []
    for token, text in pairwise(tokens):
        if token.type == "heading_open":
            token.attrSet("id", anchor(text.content))
            if token.tag == "h2":
                found.append((anchor(text.content), _plain(text)))
    for token in tokens:
        for part in token.children or ():
            if part.type == "link_open" and (table := TABLE_LINK.fullmatch(str(part.attrGet("href")))):
                part.attrSet("href", f"#rows-{table[1]}/{table[2]}")
    return found


def _with_charts(tokens: Sequence[Token], charts: Collection[str]) -> list[Token]:
    """Replace each paragraph that is a drawing by the chart of that name, which keeps its title."""
    kept: list[Token] = []
    skip_close = False
    for token in tokens:
        key = _figure(token)
        if key in charts:
            [image] = token.children or []
            kept[-1] = Token("html_block", "", 0, content=str(CHART.format(key=key, title=_plain(image))), block=True)
            skip_close = True
        elif skip_close:
            skip_close = False
        else:
            kept.append(token)
    return kept


def _figure(token: Token) -> str | None:
    """Return `stage/name` of the drawing that is all of a paragraph's text; None for any other token."""
    parts = token.children or []
    if token.type != "inline" or len(parts) != 1 or parts[0].type != "image":
        return None
    link = FIGURE_LINK.fullmatch(str(parts[0].attrGet("src")))
    return link[1] if link else None


def _plain(token: Token) -> str:
    """Return text without its markup."""
    return "".join(part.content for part in token.children or ())
