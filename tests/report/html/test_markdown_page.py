import re

import pytest

from pipeline.report.html.markdown_page import PlacedChart, figure_titles, to_html
from pipeline.report.markup import Markdown

from ...stages.sections import HOSTILE

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
CHART = PlacedChart("timing/achieved", "How fast? (benchmarking, a)", "Rates", "Not drawn: none.")


def test_headings_have_the_anchors_that_links_in_the_text_name():
    body = to_html(TEXT)
    assert [heading for _, heading in body.contents] == ["How fast? (benchmarking, a)", "How far to trust it"]
    assert '<h2 id="how-far-to-trust-it">' in body.html
    assert 'href="#how-far-to-trust-it"' in body.html


def test_links_to_tables_lead_to_the_rows_of_this_page():
    html = to_html(TEXT).html
    links = re.findall('href="(#rows[^"]*)"', html)
    assert links == ["#rows-timing/bf16", "#rows-timing/fp32"]
    assert ".csv" not in html


def test_a_figure_without_a_chart_is_a_drawing_with_its_title():
    body = to_html(TEXT)
    assert body.drawings == ["timing/achieved"]
    assert '<img data-figure="timing/achieved" alt="At most 339, by xl">' in body.html
    assert "<p><figure" not in body.html


def test_a_chart_takes_the_place_and_the_title_of_its_figure():
    body = to_html(TEXT, [CHART])
    assert body.drawings == []
    assert body.html.count('data-chart="timing/achieved"') == 1
    assert "<figcaption>At most 339, by xl</figcaption>" in body.html
    assert "Not drawn: none." in body.html


def test_a_chart_without_a_figure_stands_behind_the_answer_of_its_section():
    html = to_html(TEXT, [PlacedChart("timing/other", CHART.heading, "Other <b>rates</b>", "")]).html
    place = html.index('data-chart="timing/other"')
    assert html.index("<strong>Fast.</strong>") < place < html.index("data-figure")
    assert "<figcaption>Other &lt;b&gt;rates&lt;/b&gt;</figcaption>" in html


def test_titles_of_figures_are_plain_text():
    assert figure_titles(TEXT) == {"timing/achieved": "At most 339, by xl"}


@pytest.mark.parametrize("place", ["# {}\n", "## {}\n", "{}\n", "| a |\n|---|\n| {} |\n"])
def test_nothing_that_a_record_holds_becomes_markup(place):
    escaped = to_html(Markdown(place).format(Markdown.escape(HOSTILE)))
    for words in ("<script", "<!--", "<a ", 'http://e.com/x.png"', "<em>", "<code>"):
        assert words not in escaped.html
    raw = to_html(place.format(HOSTILE.replace("\n", " ")))
    assert "<script" not in raw.html
    assert "<!--" not in raw.html
