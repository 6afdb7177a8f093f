import base64
import gzip
import json
import re

import pandas as pd
import pytest

from pipeline.report.all_rows import row_table
from pipeline.report.chart import Axis, Chart
from pipeline.report.html.markdown_page import to_html
from pipeline.report.html.page import Page, render
from pipeline.report.html.vega_lite import specification

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
COUNT = 5000
STATUSES = ["ok", "unstable", "oom", "skipped"]


def bars():
    """Return the specification of a chart of two bars."""
    rows = pd.DataFrame(
        {"name": [HOSTILE, "b"], "ms": [2.0, 1234.5678], "missing": [None, None], "status": ["ok", "ok"]}
    )
    axes = Axis("ms", "median (ms)"), Axis("name", "model")
    return specification(Chart("bars", "Bars", rows, "bar", *axes, hover={"idle (%)": "missing"}))


def page():
    wide = f"| {'wide ' * 60} | x |\n|---|---|\n| {'x' * 400} | y |\n"
    text = f"# A machine\n\nText.\n\n## One\n\nAnswer.\n\n![Bars](figures/a/bars.svg)\n\n{wide}"
    numbers = [(7 * place) % COUNT for place in range(COUNT)]
    table = pd.DataFrame(
        {
            "status": [STATUSES[place % 4] for place in numbers],
            "name": [f"{HOSTILE} {place}" for place in numbers],
            "ms": [None if place % 10 == 0 else place / 7 for place in numbers],
            "batch": 4,
        }
    )
    charts = {"a/bars": bars()}
    tables = {"timing": row_table(table, {"ms": "median"}), "flash": row_table(table.head(3), {})}
    return Page(to_html(text, charts), charts, tables)


@pytest.fixture
def opened(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(render(page()))
    browser.open(path)
    return browser


def shown(browser):
    """Return the rows of the table that are in the document, as texts."""
    return browser.run(
        "[...document.querySelectorAll('#body tr:not(.space)')].map(r => [...r.cells].map(c => c.textContent))"
    )


def enter(browser, name, value):
    """Choose or write something in one of the table's controls."""
    browser.run(
        f"(control => {{ control.value = '{value}'; control.dispatchEvent(new Event('input'));"
        f" control.dispatchEvent(new Event('change')); }})(document.getElementById('{name}'))"
    )


def test_the_same_page_is_the_same_bytes():
    assert render(page()) == render(page())


def test_what_a_record_holds_stands_in_the_page_escaped_or_packed():
    html = render(page())
    assert "onerror" not in html.replace("&lt;img src=x onerror=alert(1)&gt;", "")
    packed = re.search(r'id="data-charts">([^<]*)<', html)[1]
    charts = json.loads(gzip.decompress(base64.b64decode(packed)))
    assert charts["a/bars"]["data"]["values"][0]["name"] == HOSTILE


def test_a_page_without_charts_carries_no_library():
    plain = Page(to_html("# Plain\n"))
    assert len(render(plain)) < 50_000


@pytest.mark.browser
class TestInABrowser:
    """What a reader gets who opens the file."""

    def test_it_is_shown_whole_without_an_error_or_a_request(self, opened):
        assert opened.errors == []
        assert {request.split(":")[0] for request in opened.requests} <= {"file", "blob", "data"}
        assert sum(request.startswith("file") for request in opened.requests) == 1
        assert opened.marks("a/bars")["bars"] == 2
        assert opened.run("document.getElementById('failure').hidden")

    def test_a_mark_tells_texts_and_numbers_when_pointed_at(self, opened):
        bars = "[...document.querySelectorAll('.mark-rect.role-mark path')]"
        assert opened.run(f"{bars}.map(bar => bar.__data__.tooltip)") == [
            {"model": HOSTILE, "median (ms)": "2", "idle (%)": "", "outcome": "ok"},
            {"model": "b", "median (ms)": "1,235", "idle (%)": "", "outcome": "ok"},
        ]

    def test_a_script_that_is_not_the_page_s_does_not_run(self, opened):
        opened.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
        )
        opened.run("new Promise(done => setTimeout(done, 100))")
        assert opened.run("window.hacked === undefined")
        assert opened.errors != []  # the browser says what its policy refused

    def test_nothing_can_be_fetched(self, opened):
        assert opened.run("fetch('https://example.com').then(() => 'fetched', () => 'refused')") == "refused"
        assert not [request for request in opened.requests if request.startswith("https")]

    def test_only_rows_that_are_seen_are_in_the_document(self, opened):
        assert opened.run("document.getElementById('shown').textContent") == "5,000 of 5,000 rows"
        assert 10 < len(shown(opened)) < 100
        opened.run("document.getElementById('viewport').scrollTop = 1e9")
        opened.wait_for(
            f"[...document.querySelectorAll('#body tr:not(.space)')].at(-1).textContent.includes(' {7 * 4999 % 5000}')"
        )

    def test_a_column_sorts_up_down_and_not_with_what_is_missing_last(self, opened):
        click = "[...document.querySelectorAll('#head button')].find(b => b.textContent === 'ms').click()"
        orders = []
        for _ in range(3):
            opened.run(click)
            orders.append([row[2] for row in shown(opened)][:3])
        assert orders == [["0.142857", "0.285714", "0.428571"], ["714.143", "714", "713.857"], ["", "1", "2"]]
        opened.run(click + ";document.getElementById('viewport').scrollTop = 1e9")
        opened.wait_for("[...document.querySelectorAll('#body tr:not(.space)')].at(-1).cells[2].textContent === ''")

    def test_rows_are_filtered_by_status_and_by_words(self, opened):
        enter(opened, "status", "oom")
        assert opened.run("document.getElementById('shown').textContent") == "1,250 of 5,000 rows"
        assert {row[0] for row in shown(opened)} == {"oom"}
        enter(opened, "filter", "ALERT 1234")
        assert [row[1] for row in shown(opened)] == [f"{HOSTILE} 1234"]

    def test_another_table_keeps_the_words_and_the_status_if_it_has_that_one(self, opened):
        enter(opened, "status", "unstable")
        enter(opened, "filter", "1234")
        enter(opened, "table", "flash")
        chosen = "['status', 'filter'].map(id => document.getElementById(id).value)"
        assert opened.run(chosen) == ["all", "1234"]
        enter(opened, "table", "timing")
        enter(opened, "status", "ok")
        enter(opened, "table", "flash")
        assert opened.run(chosen) == ["ok", "1234"]

    def test_a_link_opens_the_table_of_its_stage(self, opened):
        opened.run("location.hash = '#rows-flash'")
        opened.wait_for("document.getElementById('shown').textContent !== '5,000 of 5,000 rows'")
        assert opened.run("document.getElementById('shown').textContent") == "3 of 3 rows"

    def test_a_link_to_one_of_its_tables_shows_the_rows_of_that_table(self, opened):
        opened.run("location.hash = '#rows-timing/oom'")
        opened.wait_for("document.getElementById('shown').textContent !== '5,000 of 5,000 rows'")
        assert opened.run("document.getElementById('shown').textContent") == "1,250 of 5,000 rows"

    def test_what_is_the_same_in_all_rows_stands_beside_them(self, opened):
        assert opened.run("document.getElementById('same').textContent") == "batch4"

    def test_the_download_holds_the_chosen_rows(self, opened):
        enter(opened, "filter", "4321")
        text = opened.run(
            "new Promise(done => { URL.createObjectURL = blob => (blob.text().then(done), '#');"
            " document.getElementById('download').click(); })"
        )
        assert text.splitlines() == ["status,name,ms", f"unstable,{HOSTILE} 4321,617.286"]

    @pytest.mark.parametrize("dark", [False, True])
    def test_a_phone_shows_it_without_scrolling_sideways(self, browser, tmp_path, dark):
        browser.look(390, 844, dark)
        path = tmp_path / "page.html"
        path.write_text(render(page()))
        browser.open(path)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run("document.querySelector('[data-chart] svg').getBoundingClientRect().right") <= 390
        assert browser.run("parseFloat(getComputedStyle(document.querySelector('main > p:not(.note)')).fontSize)") >= 15
        assert browser.errors == []

    @pytest.mark.parametrize("dark", [False, True])
    def test_text_stands_out_from_its_ground_in_either_scheme(self, opened, dark):
        opened.look(dark=dark)
        opened.wait_for(
            f"getComputedStyle(document.body).backgroundColor === 'rgb({'20, 24, 28' if dark else '255, 255, 255'})'"
        )
        for element in ("main > p:not(.note)", ".note", "#failure", "a", "th", "figcaption"):
            assert contrast(opened, element) >= 4.5, element

    def test_a_plot_exchanges_light_and_dark_with_the_page(self, opened):
        shown = "getComputedStyle(document.querySelector('.chart-wrapper svg')).filter"
        assert opened.run(shown) == "none"
        opened.look(dark=True)
        opened.wait_for(f"{shown} === 'invert(0.93) hue-rotate(180deg)'")

    def test_a_plot_is_drawn_anew_for_a_phone(self, opened):
        opened.look(390, 844)
        opened.wait_for("document.querySelector('.plot svg').getBoundingClientRect().right <= 390")
        assert opened.errors == []


def contrast(browser, selector):
    """Return the contrast of an element's text with the page, as WCAG defines it."""
    colours = browser.run(
        f"[document.querySelector('{selector}'), document.body].map((e, i) =>"
        " getComputedStyle(e)[i ? 'backgroundColor' : 'color'].match(/[\\d.]+/g).slice(0, 3).map(Number))"
    )
    light, dark = sorted(map(luminance, colours), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    linear = [part / 3294.6 if part <= 10.3 else ((part / 255 + 0.055) / 1.055) ** 2.4 for part in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
