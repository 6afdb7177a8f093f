import re

import pytest

from pipeline.report.html.page import to_html
from pipeline.report.markup import Markdown

HOSTILE = (
    "</td></summary><script>alert(1)</script><!-- --> [x](http://e.com) ![x](http://e.com/x.png) `x` **x** __x__ ~~x~~"
    " | x <https://e.com> https://e.com www.e.com a@e.com $\\frac{$ \\| &lt;\n\n# x\n\n[x]: http://e.com\n```\n\u202e\x1b[2J"
)
TEXT = """\
# H200

[why](#how-far-to-trust-it)

## How fast? (benchmarking, a)

**Fast.**

![At most 339, by `xl`](figures/timing/achieved.svg)

| model | ms |
|:------|---:|
| xl | 3 |

All rows: [bf16](../results/timing/bf16.csv), [fp32](tables/timing/fp32.csv).

## How far to trust it

Far.
"""


def test_headings_have_anchors_and_table_links_lead_to_rows_of_the_page():
    body = to_html(TEXT)
    assert [heading for _, heading in body.contents] == ["How fast? (benchmarking, a)", "How far to trust it"]
    assert '<h2 id="how-far-to-trust-it">' in body.html
    links = re.findall('href="([^"]*)"', body.html)
    assert links == ["#how-far-to-trust-it", "#rows-timing/bf16", "#rows-timing/fp32"]


def test_table_cells_do_not_wrap_intervals_or_units_but_paragraphs_may():
    words = "FlashAttention-4: 1.20× (1.19 to 1.20), 2.03 s, 91.8 GB"
    html = to_html(f"{words}\n\n| {words} |\n|---|\n| {words} |\n").html
    whole = "FlashAttention\u20114: 1.20× (1.19\xa0to\xa01.20), 2.03\xa0s, 91.8\xa0GB"
    assert all(line in html for line in (f"<p>{words}</p>", f"<th>{whole}</th>", f"<td>{whole}</td>"))


@pytest.mark.parametrize("charts", [["timing/achieved"], []])
def test_a_chart_if_any_replaces_its_drawing_and_keeps_the_title(charts):
    html = to_html(TEXT, charts).html
    assert html.count('data-chart="timing/achieved"') == len(charts)
    assert ("<figcaption>At most 339, by xl</figcaption>" in html) == bool(charts)
    assert ("<img" in html) == (not charts)
    assert "<p><figure" not in html


@pytest.mark.parametrize("place", ["# {}\n", "## {}\n", "{}\n", "| a |\n|---|\n| {} |\n"])
def test_record_text_never_becomes_markup(place):
    escaped = to_html(Markdown(place).format(Markdown.escape(HOSTILE)), ["a/b"]).html
    markup = ("<script", "<!--", "<a ", 'http://e.com/x.png"', "<em>", "<code>")
    assert [words for words in markup if words in escaped] == []
    raw = to_html(place.format(HOSTILE.replace("\n", " "))).html
    assert [words for words in markup[:2] if words in raw] == []
