"""Render Markdown as HTML: headings with anchors, tables that scroll, charts in place of drawings."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
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
LONE_CHART = re.compile(r"<p>(<figure .*?</figure>\n)</p>")


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
    for part in (part for token in tokens for part in token.children or ()):
        if part.type == "link_open" and (table := TABLE_LINK.fullmatch(str(part.attrGet("href")))):
            part.attrSet("href", f"#rows-{table[1]}/{table[2]}")
    html = LONE_CHART.sub(r"\1", parser.renderer.render(tokens, parser.options, {}))
    title = next((_plain(inline) for token, inline in headings if token.tag == "h1"), "")
    contents = [(anchor(inline.content), _plain(inline)) for token, inline in headings if token.tag == "h2"]
    return Body(title, Markup(html), contents)


def _plain(token: Token) -> str:
    """Return text without its markup."""
    return "".join(part.content for part in token.children or ())
