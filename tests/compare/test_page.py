import base64
import gzip
import json
import re

import pytest

from pipeline.compare.judge import compare_runs
from pipeline.compare.page import comparison_page
from pipeline.compare.text import summary
from pipeline.registry import stages

from .test_judge import run, scaled

HOSTILE = "<img src=x onerror=alert(1)>"


def page_of(a, b, name="a/results"):
    comparison = compare_runs(a, b, stages(), 0.05)
    return comparison, comparison_page(comparison, name, "b/results")


def unpacked(page, name):
    return json.loads(gzip.decompress(base64.b64decode(re.search(rf'id="data-{name}">([^<]*)<', page)[1])))


def test_the_page_has_the_summary_every_ratio_and_every_time():
    comparison, page = page_of(run(), scaled(run(), 1.5))
    assert summary(comparison) in page
    (chart,) = unpacked(page, "charts").values()
    assert [row["ratio"] for row in chart["data"]["values"]] == pytest.approx([1.5] * 4)
    (times,) = unpacked(page, "tables").values()
    assert times["told_by"] == "verdict"
    assert times["columns"]["verdict"] == ["slower"] * 4
    assert times["same"]["B / A"] == 1.5
    assert sorted(times["columns"]["A (ms)"]) == [10, 10, 20, 20]


def test_runs_without_a_time_in_common_have_a_page_without_chart_and_table():
    _, page = page_of(run("small"), run("xl"))
    assert unpacked(page, "charts") == unpacked(page, "tables") == {}
    assert "no time is in both" in page


def test_the_same_comparison_is_the_same_bytes():
    assert page_of(run(), scaled(run(), 1.5))[1] == page_of(run(), scaled(run(), 1.5))[1]


def test_names_and_records_of_strangers_are_text():
    other = run()
    for each in other:
        each["machine"]["cpu"]["model"] = each["machine"]["kind"] = HOSTILE
    _, page = page_of(run(), other, name=HOSTILE)
    assert HOSTILE not in page
    assert page.count("&lt;img src=x onerror=alert(1)&gt;") >= 4


@pytest.mark.browser
def test_it_opens_and_its_times_are_chosen_by_verdict(browser, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(page_of(run(), [*scaled(run("small"), 1.5), *run("xl")])[1])
    browser.open(path)
    assert browser.errors == []
    assert browser.marks("compare/ratios")["symbol"] >= 4
    assert browser.run("document.querySelector('label span').textContent") == "verdict"
    browser.run("status_ = document.getElementById('status'); status_.value = 'slower'")
    browser.run("status_.dispatchEvent(new Event('change')), 0")
    assert browser.run("document.getElementById('shown').textContent") == "2 of 4 rows"
