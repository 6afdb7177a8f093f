import base64
import functools
import gzip
import json
import re

import numpy as np
import pandas as pd
import pytest

from pipeline.registry import stages
from pipeline.report.chart import Axis, Chart
from pipeline.report.html.page import LONGEST_TEXT, page, row_table
from pipeline.report.page_request import PageRequest
from pipeline.report.pages import meanings, write_pages

from ..runs import levers_record, step, written

HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script>"
COUNT = 5000


@functools.cache
def example():
    """Return a page with a chart of two bars, a wide table, and rows to explore."""
    rows = pd.DataFrame({"name": [HOSTILE, "b"], "ms": [2.0, 1234.5678], "missing": None, "status": "ok"})
    axes = Axis("ms", "median (ms)"), Axis("name", "model")
    charts = {"a/bars": Chart("bars", "Bars", rows, "bar", *axes, hover={"idle (%)": "missing"})}
    wide = f"| {'wide ' * 60} | x |\n|---|---|\n| {'x' * 400} | y |\n"
    text = f"# A machine\n\nText.\n\n## One\n\nAnswer.\n\n![Bars](figures/a/bars.svg)\n\n{wide}"
    numbers = pd.Series([(7 * place) % COUNT for place in range(COUNT)])
    statuses = [("ok", "unstable", "oom", "skipped")[number % 4] for number in numbers]
    table = pd.DataFrame({"status": statuses, "name": f"{HOSTILE} " + numbers.astype(str)})
    table = table.assign(ms=(numbers / 7).where(numbers % 10 > 0), batch=4)
    tables = {"timing": row_table(table, {"ms": "median"}), "flash": row_table(table.head(3), {})}
    return page(text, charts, tables)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(example())
    return path


@pytest.fixture
def opened(browser, file):
    browser.open(file)
    return browser


def unpacked(html, name):
    return json.loads(gzip.decompress(base64.b64decode(re.search(rf'id="data-{name}">([^<]*)<', html)[1])))


def rows_of(browser):
    """Return the table rows that are in the document, as texts."""
    return browser.run("[...document.querySelectorAll('#body tr')].map(r => [...r.cells].map(c => c.textContent))")


def count(browser):
    return browser.run("document.getElementById('shown').textContent")


def enter(browser, name, value):
    """Choose or write something in one of the table's controls."""
    browser.run(
        f"(control => {{ control.value = '{value}'; control.dispatchEvent(new Event('input'));"
        f" control.dispatchEvent(new Event('change')); }})(document.getElementById('{name}'))"
    )


def test_a_row_table_separates_constant_columns_from_the_others():
    rows = pd.DataFrame({"batch": [4, 4], "median_ms": [1.23456789, np.nan], "samples_ms": [[1.0, 2.0], np.nan]})
    rows = rows.assign(reason=np.nan, capped=[True, None], text=["x" * 1000, "y"])
    found = row_table(rows, {"median_ms": "median", "samples_ms": "all samples"})
    columns = {"median_ms": [1.23457, None], "capped": [True, None], "text": ["x" * LONGEST_TEXT + "…", "y"]}
    assert found == {"columns": columns, "same": {"batch": 4}, "meanings": {"median_ms": "median"}}
    assert row_table(rows.head(1), {})["columns"]["batch"] == [4]


def test_a_page_escapes_record_text_and_includes_the_chart_library_only_for_charts():
    html = example()
    assert html == example.__wrapped__()
    assert "onerror" not in html.replace("&lt;img src=x onerror=alert(1)&gt;", "")
    assert unpacked(html, "charts")["a/bars"]["data"]["values"][0]["name"] == HOSTILE
    assert len(page("# Plain\n", {}, {})) < 50_000


def test_the_report_has_all_charts_the_rows_of_all_repeats_and_column_meanings(tmp_path):
    rows = [step(levers, ms) for levers, ms in (("eager", 100.0), ("sdpa", 80.0), ("fused", 90.0))]
    records = [levers_record(*rows, repeat=repeat) for repeat in (1, 2)]
    write_pages(PageRequest(written(tmp_path, *records)), stages(), tmp_path / "reports")
    html = (tmp_path / "reports/report.html").read_text()
    charts = set(re.findall('data-chart="([^"]+)"', html))
    assert charts == set(unpacked(html, "charts")) == {"levers/models", "levers/gains"}
    tables = unpacked(html, "tables")
    assert tables["levers"]["columns"]["repeat"] == [1] * 3 + [2] * 3
    assert tables["cells"]["columns"]["cell"][1].endswith("repeat=2")
    for stage in stages().values():
        assert set(meanings(stage)) == set(stage.row_types.column_names()), stage.name


@pytest.mark.browser
class TestInABrowser:
    """What a reader who opens the file gets."""

    def test_the_page_is_shown_without_errors_or_network_requests(self, opened):
        assert opened.errors == []
        assert {request.split(":")[0] for request in opened.requests} <= {"file", "blob", "data"}
        assert sum(request.startswith("file") for request in opened.requests) == 1
        assert opened.marks("a/bars") == 2
        assert opened.run("document.getElementById('failure').hidden")

    def test_a_drawn_chart_has_no_empty_space_below_it(self, opened):
        height = "document.querySelector('.plot{}').getBoundingClientRect().height"
        assert 0 <= opened.run(f"{height.format('')} - {height.format(' svg')}") < 20

    def test_hovering_over_a_mark_shows_texts_and_numbers(self, opened):
        bars = "[...document.querySelectorAll('.mark-rect.role-mark path')]"
        assert opened.run(f"{bars}.map(bar => bar.__data__.tooltip)") == [
            {"model": HOSTILE, "median (ms)": "2", "idle (%)": "", "outcome": "ok"},
            {"model": "b", "median (ms)": "1,235", "idle (%)": "", "outcome": "ok"},
        ]

    def test_foreign_scripts_do_not_run_and_nothing_can_be_fetched(self, opened):
        opened.run(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hacked = 1\">');"
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))"
        )
        assert opened.run("fetch('https://example.com').then(() => 'fetched', () => 'refused')") == "refused"
        opened.run("new Promise(done => setTimeout(done, 100))")
        assert opened.run("window.hacked === undefined")
        assert not [request for request in opened.requests if request.startswith("https")]
        assert opened.errors != []  # the browser says what its policy refused

    def test_rows_are_added_as_the_reader_scrolls(self, opened):
        assert count(opened) == "5,000 of 5,000 rows"
        assert 10 < len(rows_of(opened)) < 500
        opened.wait_for(
            "document.getElementById('viewport').scrollTop = 1e9,"
            f" [...document.querySelectorAll('#body tr')].at(-1).textContent.includes(' {7 * 4999 % 5000}')"
        )
        assert len(rows_of(opened)) == COUNT

    def test_clicks_sort_a_column_up_then_down_then_restore_the_order(self, opened):
        orders = []
        for _ in range(3):
            opened.run("[...document.querySelectorAll('#head button')].find(b => b.textContent === 'ms').click()")
            orders.append([row[2] for row in rows_of(opened)][:3])
        assert orders == [["0.142857", "0.285714", "0.428571"], ["714.143", "714", "713.857"], ["", "1", "2"]]

    def test_rows_can_be_filtered_and_downloaded_and_the_filter_outlives_a_table_change(self, opened):
        assert opened.run("document.getElementById('same').textContent") == "batch4"
        enter(opened, "filter", "OOM")
        assert count(opened) == "1,250 of 5,000 rows"
        enter(opened, "filter", "ALERT 4321")
        assert [row[1] for row in rows_of(opened)] == [f"{HOSTILE} 4321"]
        text = opened.run(
            "new Promise(done => { URL.createObjectURL = blob => (blob.text().then(done), '#');"
            " document.getElementById('download').click(); })"
        )
        assert text.splitlines() == ["status,name,ms", f"unstable,{HOSTILE} 4321,617.286"]
        enter(opened, "table", "flash")
        assert opened.run("document.getElementById('filter').value") == "ALERT 4321"
        assert count(opened) == "0 of 3 rows"

    @pytest.mark.parametrize(("link", "rows"), [("flash", "3 of 3 rows"), ("timing/oom", "1,250 of 5,000 rows")])
    def test_a_link_opens_the_rows_of_a_stage_or_of_one_of_its_tables(self, opened, link, rows):
        opened.run(f"location.hash = '#rows-{link}'")
        opened.wait_for(f"document.getElementById('shown').textContent === '{rows}'")

    @pytest.mark.parametrize("dark", [False, True])
    def test_a_phone_shows_the_page_without_sideways_scrolling(self, browser, file, dark):
        browser.look(390, 844, dark)
        browser.open(file)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run("document.querySelector('[data-chart] svg').getBoundingClientRect().right") <= 390
        assert browser.run("parseFloat(getComputedStyle(document.querySelector('main > p:not(.note)')).fontSize)") >= 15
        assert browser.errors == []

    def test_text_has_contrast_in_light_and_dark_mode_and_plots_follow_the_mode(self, opened):
        for dark, ground in ((False, "255, 255, 255"), (True, "20, 24, 28")):
            opened.look(dark=dark)
            opened.wait_for(f"getComputedStyle(document.body).backgroundColor === 'rgb({ground})'")
            for element in ("main > p:not(.note)", ".note", "#failure", "a", "th", "figcaption"):
                assert contrast(opened, element) >= 4.5, element
            plot = opened.run("getComputedStyle(document.querySelector('.chart-wrapper svg')).filter")
            assert ("invert" in plot) == dark


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
