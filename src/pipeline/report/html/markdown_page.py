"""Markdown to HTML: headings with anchors, wide tables that scroll, charts and drawings in place of images."""

import re
from collections.abc import Mapping, Sequence
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
    '<div class="pickers"></div><div class="plot" role="img" aria-label="{title}"></div>{note}</figure>\n'
)
DRAWING = Markup('<figure><figcaption>{title}</figcaption><img data-figure="{key}" alt="{title}"></figure>\n')
NOTE = Markup('<p class="note">{note}</p>')


@dataclass(frozen=True)
class PlacedChart:
    """A chart by its key, `stage/name`, and the heading under which it stands if no figure has this key."""

    key: str
    heading: str
    title: str
    note: str


@dataclass(frozen=True)
class Body:
    """A rendered page: its title, its HTML, its second-level headings by anchor, and the drawings that it shows."""

    title: str
    html: Markup
    contents: Sequence[tuple[str, str]]
    drawings: Sequence[str]


def to_html(text: str, charts: Sequence[PlacedChart] = ()) -> Body:
    """Render Markdown in which HTML is text. A chart takes the place of its figure, or stands under its heading.

    Links to tables become links to the rows of that stage in this page.
    """
    parser = _parser()
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>\n')
    parser.add_render_rule("table_close", lambda *_: "</table></div>\n")
    tokens = parser.parse(text)
    by_key = {chart.key: chart for chart in charts}
    drawn = {key for token in tokens if (key := _figure(token))}
    more = [chart for chart in charts if chart.key not in drawn]
    contents, placed = _headings(tokens), _with_figures(tokens, by_key)
    html = parser.renderer.render(_with_more_charts(placed, more), parser.options, {})
    title = next((_plain(text) for start, text in pairwise(tokens) if start.tag == "h1"), "")
    return Body(title, Markup(html), contents, sorted(drawn - set(by_key)))


def figure_titles(text: str) -> dict[str, str]:
    """Return the titles of a Markdown text's figures as plain text, by `stage/name`."""
    return {key: _title(token) for token in _parser().parse(text) if (key := _figure(token))}


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


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


def _figure(token: Token) -> str | None:
    """Return `stage/name` of the figure that is all of a paragraph's text; None for any other token."""
    parts = token.children or []
    if token.type != "inline" or len(parts) != 1 or parts[0].type != "image":
        return None
    link = FIGURE_LINK.fullmatch(str(parts[0].attrGet("src")))
    return link[1] if link else None


def _plain(token: Token) -> str:
    """Return text without its markup."""
    return "".join(part.content for part in token.children or ())


def _title(token: Token) -> str:
    """Return the title of a figure as plain text."""
    [image] = token.children or []
    return _plain(image)


def _with_figures(tokens: Sequence[Token], charts: Mapping[str, PlacedChart]) -> list[Token]:
    """Replace each paragraph that is a figure by the chart or drawing of that name, which keeps the figure's title."""
    kept: list[Token] = []
    skip_close = False
    for token in tokens:
        if key := _figure(token):
            title = _title(token)
            kept[-1] = _block(_chart(charts[key], title) if key in charts else DRAWING.format(key=key, title=title))
            skip_close = True
        elif skip_close:
            skip_close = False
        else:
            kept.append(token)
    return kept


def _with_more_charts(tokens: Sequence[Token], charts: Sequence[PlacedChart]) -> list[Token]:
    """Put charts behind the first paragraph under their heading."""
    kept: list[Token] = []
    waiting: Sequence[PlacedChart] = ()
    for token in tokens:
        kept.append(token)
        if token.type == "inline" and len(kept) > 1 and kept[-2].type == "heading_open":
            waiting = [chart for chart in charts if chart.heading == token.content]
        elif token.type == "paragraph_close" and waiting:
            kept += [_block(_chart(chart, chart.title)) for chart in waiting]
            waiting = ()
    return kept


def _chart(chart: PlacedChart, title: str) -> Markup:
    note = NOTE.format(note=chart.note) if chart.note else ""
    return CHART.format(key=chart.key, title=title, note=note)


def _block(html: Markup) -> Token:
    return Token("html_block", "", 0, content=str(html), block=True)
