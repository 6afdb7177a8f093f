import base64
import gzip
import json
import re

import pytest

from pipeline.registry import stages
from pipeline.report.asked import Asked
from pipeline.report.pages import write_pages

from ..runs import GPU, levers_record, step, written

ROWS = (step("eager", 100.0), step("sdpa", 80.0), step("fused", 90.0), step("eager_again", 101.0))


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The page of two repeats of one cell."""
    folder = tmp_path_factory.mktemp("run")
    machine = {**GPU, "kind": "<img src=x onerror=alert(1)>"}
    records = [levers_record(*(row | {"measured_peak_tflops_per_s": 1.0} for row in ROWS), machine=machine)]
    records.append({**records[0], "cell": records[0]["cell"] | {"repeat": 2}})
    write_pages(Asked(written(folder, *records)), stages(), folder / "reports")
    return folder / "reports/report.html"


def unpacked(page, name):
    return json.loads(gzip.decompress(base64.b64decode(re.search(rf'id="data-{name}">([^<]*)<', page)[1])))


def test_it_has_the_write_up_s_text_every_chart_and_the_rows_of_all_repeats(page):
    html = page.read_text()
    charts = set(re.findall('data-chart="([^"]+)"', html))
    assert charts == set(unpacked(html, "charts")) == {"levers/models", "levers/gains"}
    tables = unpacked(html, "tables")
    assert tables["levers"]["columns"]["repeat"] == [1] * 4 + [2] * 4
    assert tables["levers"]["meanings"]["median_ms"] == "median"
    assert tables["cells"]["columns"]["cell"][1].endswith("repeat=2")


@pytest.mark.browser
def test_it_opens_from_its_file_and_draws_every_plot(page, browser):
    browser.open(page)
    assert browser.errors == []
    assert browser.run("[...document.querySelectorAll('[data-chart]')].every(plot => plot.dataset.drawn)")
    assert browser.run("document.title") == "<img src=x onerror=alert(1)>: how fast it trains language models"
