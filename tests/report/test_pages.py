import json
import re
from dataclasses import asdict

import pandas as pd
import pytest

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.page_request import PageRequest, read_page_request, write_page_request
from pipeline.report.pages import write_pages
from pipeline.report.section import Change, Section, StageReport
from pipeline.report.writeup import changes

from ..records import record
from .runs import GPU, ROWS, levers_record, written


def pages(folder, *records, **request):
    """Write the pages of these records; return the folder that they are in."""
    write_pages(PageRequest(written(folder, *records), **request), stages(), folder / "reports")
    return folder / "reports"


def writeup(folder, *records, **request):
    return (pages(folder, *records, **request) / "writeup.md").read_text()


def lost(status, reason, **parts):
    return levers_record(*({"levers": row["levers"], "status": status, "reason": reason} for row in ROWS), **parts)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pages(tmp_path_factory.mktemp("run"), levers_record(*ROWS), scale="paper")


def test_the_first_screen_and_the_summary_have_the_models_and_the_changes(run):
    text = (run / "writeup.md").read_text().split("\n## ")[0]
    assert text.startswith("# NVIDIA H200")
    assert re.search(r"^\*\*.*medium.*\*\*$", text, re.M)
    assert "](figures/levers/models.svg)" in text
    changes = [line for line in text.splitlines() if line.startswith("| SDPA")]
    assert [("2.00×" in line, "1.25×" in line) for line in changes] == [(True, False), (False, True)]
    summary = json.loads((run / "summary.json").read_text())
    [model] = summary["models"]
    assert (model["eager"]["median_ms"], model["tuned"]["with"]) == (100.0, "sdpa+compile")
    assert [change["ratio"] for change in summary["changes"]] == pytest.approx([2.0, 1.25])


def test_pages_are_reproducible_show_only_existing_figures_and_leave_no_old_ones(run, tmp_path):
    (tmp_path / "reports/figures/gone").mkdir(parents=True)
    (tmp_path / "reports/figures/gone/old.svg").touch()
    again = pages(tmp_path, levers_record(*ROWS), scale="paper")
    for page in ("writeup.md", "course.md"):
        links = re.findall(r"\]\((figures/[^)]+)\)", (again / page).read_text())
        assert all((again / link).is_file() for link in links)
    files = [{path.relative_to(each): path for path in each.rglob("*") if path.is_file()} for each in (run, again)]
    assert len(files[0]) > 5
    first, second = ({name: path.read_bytes() for name, path in each.items()} for each in files)
    assert first == second


def test_failed_cells_and_cells_on_a_busy_host_are_named_on_the_first_screen(tmp_path):
    failed = lost("failed", "ended by SIGKILL", size="xl", log="a.log")
    busy = {"cores": 8, "others_cores": 6.0, "busy": True, "load_before": 7.0, "load_after": 7.0}
    text = writeup(tmp_path, levers_record(*ROWS, host=busy), failed).split("\n## ")[0]
    assert all(words in text for words in ("ended by SIGKILL", "a.log", "other processes"))
    assert "No results: 4 oom. out of memory" in writeup(tmp_path, lost("oom", "out of memory"))


def test_missing_cells_and_cells_measured_by_changed_code_are_named(run, tmp_path):
    missing = [{"stage": "fsdp", "cell": {"world_size": 4, "size": size}} for size in ("xl", "2.7B")]
    text = writeup(tmp_path, levers_record(*ROWS), scale="paper", missing=missing, outdated=["abc"])
    assert 'scale "paper" that have not been measured, by stage: fsdp 2. ' in text
    edited = "1 of 1 cells (levers) has been edited"
    assert [edited in page for page in (text, (run / "writeup.md").read_text())] == [True, False]


def test_commits_are_counted_and_a_stage_measured_at_several_is_named(tmp_path):
    later = {"digest": "abc", "commit": "456"}
    alone = levers_record(*ROWS), record(code=later, started_at="2026-01-02T00:00:00Z")
    texts = [writeup(tmp_path, *alone), writeup(tmp_path, *alone, levers_record(*ROWS, size="xl", code=later))]
    assert all("come from 2 commits, the last of them 456" in text for text in texts)
    assert ["those of levers come from several" in text for text in texts] == [False, True]


def test_the_machine_name_in_a_record_is_escaped_on_both_pages(tmp_path):
    evil = {**GPU, "kind": "<img src=x onerror=alert(1)>"}
    folder = pages(tmp_path, levers_record(*(row | {"measured_peak_tflops_per_s": 1.0} for row in ROWS), machine=evil))
    assert all("<img src=x" not in (folder / name).read_text() for name in ("report.html", "writeup.md"))


def test_a_mostly_unstable_stage_links_to_its_rows_and_shows_no_table(tmp_path):
    wild = {"samples_ms": [10.0, 200.0, 30.0, 90.0, 400.0]}
    section = writeup(tmp_path, levers_record(*(row | wild for row in ROWS))).split("\n## ")[1]
    fragments = ("4 of 4 times", "(../results/levers/medium.csv)", "\n| ")
    assert [words in section for words in fragments] == [True, True, False]


@pytest.mark.parametrize("in_clone", [True, False])
def test_without_a_clone_the_page_names_the_command_that_finds_the_workflow(tmp_path, in_clone):
    missing = [{"stage": "levers", "cell": {}}]
    text = writeup(tmp_path, levers_record(*ROWS), scale="smoke", missing=missing, in_clone=in_clone)
    program = "snakemake" if in_clone else "python -m pipeline run"
    where = " in a clone at commit " if in_clone else ", with the package of commit "
    assert f"`{program} --cores 1 reports/writeup.md`{where}" in text
    assert f"`{program} results/STAGE/cells.csv` measures those of a stage." in text


def test_a_page_request_is_read_as_written_and_an_unchanged_file_keeps_its_mtime(tmp_path):
    request = PageRequest(["a.json"], "paper", [{"stage": "x", "cell": {}}], ["d"], ["scale=paper"])
    path = tmp_path / "asked.json"
    write_page_request(request, path)
    before = path.stat().st_mtime_ns
    write_page_request(request, path)
    assert (path.stat().st_mtime_ns, asdict(read_page_request(path))) == (before, asdict(request))


@pytest.mark.parametrize("text", ["", "[1]", '{"records": [], "other": 1}'])
def test_a_damaged_page_request_or_no_records_at_all_give_a_one_line_error(tmp_path, text):
    (tmp_path / "asked.json").write_text(text)
    with pytest.raises(UserError, match=r"asked\.json"):
        read_page_request(tmp_path / "asked.json")
    with pytest.raises(UserError, match="nothing to report"):
        write_pages(PageRequest([]), stages(), tmp_path)


def test_a_change_from_two_stages_appears_once_and_a_small_undecided_one_never():
    judged = {"low": 1.2, "high": 1.4, "repeats": 1, "gain": ""}
    found = [("flash", 1.3, "faster"), ("flash", 1.4, "faster"), ("new", 1.04, "undecided"), ("old", 1.2, "undecided")]
    found += [("worse", 0.5, "slower"), ("best", 2.0, "faster")]
    made = [Change(what, "", "2 ms", "1 ms", judged | {"ratio": ratio, "verdict": word}) for what, ratio, word in found]
    reports = [
        StageReport(stages()["levers"], Section("", changes=[change]), (), "", pd.DataFrame()) for change in made
    ]
    assert list(changes(reports)["change"]) == ["best", "flash", "old"]
    assert list(changes(reports)["ratio"]) == [2.0, 1.3, 1.2]
