import base64
import gzip
import json
import re

import pytest

from pipeline.cells.disk import WholeFile
from pipeline.cells.record import write_record
from pipeline.cells.tabulate import cell_table
from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.html.report_page import write_report_page
from pipeline.report.writeup import write_section, write_writeup

from ...records import CPU, record, timed_row

MACHINE = {**CPU, "kind": "<img src=x onerror=alert(1)>"}


def step(**more):
    return timed_row("train_step", measured_peak_tflops_per_s=1.0, **more)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two repeats of one cell, written up."""
    root = tmp_path_factory.mktemp("run")
    paths = []
    for repeat in (1, 2):
        path = root / f"{repeat}.json"
        cell = {**record()["cell"], "size": "tiny", "repeat": repeat}
        rows = [*(timed_row(name) for name in ("forward", "backward", "optimizer")), step()]
        write_record(WholeFile(path), record(cell=cell, rows=rows, machine=MACHINE))
        paths.append(path)
    section, cells = root / "reports/sections/timing.md", root / "cells.csv"
    section.parent.mkdir(parents=True)
    write_section(stages()["timing"], stages(), paths, section, root / "reports/figures/timing")
    cells.write_text(cell_table(paths, stages()))
    write_writeup([section], [cells], "paper", [], root / "reports/writeup.md")
    return root


def page_of(run):
    out = run / "reports/report.html"
    write_report_page(run / "reports/writeup.md", [run / "reports/sections/timing.md"], [run / "cells.csv"], out)
    return out.read_text()


def unpacked(page, name):
    return json.loads(gzip.decompress(base64.b64decode(re.search(rf'id="data-{name}">([^<]*)<', page)[1])))


def test_the_page_has_the_write_up_s_text_the_charts_and_the_rows_of_all_repeats(run):
    page = page_of(run)
    assert "how fast it trains language models</h1>" in page
    assert "All of it is of commit" in page
    assert 'data-chart="timing/achieved"' in page
    assert list(unpacked(page, "charts")) == ["timing/achieved", "timing/wall_and_idle"]
    tables = unpacked(page, "tables")
    assert list(tables) == ["timing", "cells"]
    assert tables["timing"]["columns"]["repeat"] == [1] * 4 + [2] * 4
    assert tables["timing"]["meanings"]["median_ms"] == "median"
    assert tables["cells"]["columns"]["cell"][1].endswith("repeat=2")


def test_written_again_it_is_the_same_bytes(run):
    assert page_of(run) == page_of(run)


def test_what_a_record_says_of_its_machine_is_text(run):
    page = page_of(run)
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_a_stage_s_parts_that_are_missing_or_damaged_are_told_in_one_line(run, tmp_path):
    section = tmp_path / "timing.md"
    with pytest.raises(UserError, match=r"cannot read .*timing\.html\.json: No such file"):
        write_report_page(run / "reports/writeup.md", [section], [], tmp_path / "report.html")
    for damaged in ("{}", "[]", "x", '{"stage": "timing", "title": "", "charts": [{}], "rows": {}}'):
        section.with_suffix(".html.json").write_text(damaged)
        with pytest.raises(UserError, match="write the section again"):
            write_report_page(run / "reports/writeup.md", [section], [], tmp_path / "report.html")


@pytest.mark.browser
def test_it_opens_from_its_file_and_draws_every_plot(run, browser):
    page_of(run)
    browser.open(run / "reports/report.html")
    assert browser.errors == []
    assert browser.run("[...document.querySelectorAll('[data-chart]')].every(plot => plot.dataset.drawn)")
    assert browser.run("document.querySelectorAll('[data-chart]').length") == 2
    assert browser.run("document.title") == "<img src=x onerror=alert(1)>: how fast it trains language models"
