import json
import re
from dataclasses import asdict

import pandas as pd
import pytest
from jsonschema import Draft202012Validator

from pipeline.errors import UserError
from pipeline.registry import stages
from pipeline.report.asked import Asked, read_asked, write_asked
from pipeline.report.pages import SCHEMA, write_pages
from pipeline.report.section import Change, Section, Told
from pipeline.report.writeup import changes

from .runs import GPU, levers_record, step, written

ROWS = (step("eager", 100.0), step("sdpa", 80.0), step("sdpa+compile", 50.0), step("eager_again", 101.0))
TOLD = (("levers", 1.3), ("memory", 1.4))


def pages(folder, *records, **asked):
    """Write the pages of these records; return the folder that they are in."""
    write_pages(Asked(written(folder, *records), **asked), stages(), folder / "reports")
    return folder / "reports"


def screen(text):
    """Return the first screen of a write-up."""
    return text.split("\n## ")[0]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return pages(tmp_path_factory.mktemp("run"), levers_record(*ROWS), scale="paper")


def test_the_first_screen_has_a_line_a_chart_the_models_and_what_to_change(run):
    text = screen((run / "writeup.md").read_text())
    assert text.startswith("# NVIDIA H200")
    assert re.search(r"^\*\*.*medium.*\*\*$", text, re.M)
    assert "](figures/levers/models.svg)" in text
    changes = [line for line in text.splitlines() if line.startswith("| SDPA")]
    assert [("2.00×" in line, "1.25×" in line) for line in changes] == [(True, False), (False, True)]


def test_every_drawing_that_a_page_shows_is_there_and_none_of_an_earlier_run(tmp_path):
    old = tmp_path / "reports/figures/gone/old.svg"
    old.parent.mkdir(parents=True)
    old.touch()
    folder = pages(tmp_path, levers_record(*ROWS))
    for page in ("writeup.md", "course.md"):
        links = re.findall(r"\]\((figures/[^)]+)\)", (folder / page).read_text())
        assert all((folder / link).is_file() for link in links)
    assert not old.exists()


def test_they_are_written_again_as_the_same_bytes(run, tmp_path):
    again = pages(tmp_path, levers_record(*ROWS), scale="paper")
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
    assert len(files) > 5
    assert [path for path in files if (run / path).read_bytes() != (again / path).read_bytes()] == []


def test_the_summary_is_as_its_schema_declares(run):
    summary = json.loads((run / "summary.json").read_text())
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(summary)
    [model] = summary["models"]
    assert (model["eager"]["median_ms"], model["tuned"]["with"]) == (100.0, "sdpa+compile")
    assert [change["ratio"] for change in summary["changes"]] == pytest.approx([2.0, 1.25])


def test_what_failed_and_what_was_measured_beside_other_work_is_named_on_the_first_screen(tmp_path):
    rows = [{"levers": row["levers"], "status": "failed", "reason": "ended by SIGKILL"} for row in ROWS]
    failed = levers_record(*rows, size="xl", log="logs/levers/xl.log")
    busy = {"cores": 8, "others_cores": 6.0, "busy": True, "load_before": 7.0, "load_after": 7.0}
    text = screen((pages(tmp_path, levers_record(*ROWS, host=busy), failed) / "writeup.md").read_text())
    assert all(words in text for words in ("ended by SIGKILL", "logs/levers/xl.log", "other processes"))


def test_a_stage_without_figures_says_why(tmp_path):
    rows = [{"levers": row["levers"], "status": "oom", "reason": "CUDA out of memory"} for row in ROWS]
    text = (pages(tmp_path, levers_record(*rows)) / "writeup.md").read_text()
    assert "No figures: 4 oom. CUDA out of memory" in text


def test_what_has_no_record_or_is_of_code_that_has_changed_is_named(run, tmp_path):
    missing = [{"stage": "fsdp", "cell": {"world_size": 4, "size": size}} for size in ("xl", "2.7B")]
    asked = {"scale": "paper", "missing": missing, "outdated": ["abc"]}
    text = (pages(tmp_path, levers_record(*ROWS), **asked) / "writeup.md").read_text()
    [line] = [line for line in text.splitlines() if line.startswith("| fsdp | 2 |")]
    assert "world_size=4" in line
    assert "size=xl" not in line
    assert "snakemake results/fsdp/cells.csv" in line
    named = ["by code changed since" in page for page in (text, (run / "writeup.md").read_text())]
    assert named == [True, False]


def test_a_host_limited_step_is_no_headline(tmp_path):
    limited = levers_record(step("eager", 100.0, gpu_busy_ms=20.0), *ROWS[1:])
    line = re.search(r"^\*\*.*\*\*$", (pages(tmp_path, limited) / "writeup.md").read_text(), re.M)[0]
    assert "2.00" not in line


def test_what_a_record_says_of_its_machine_is_text_on_both_pages(tmp_path):
    evil = {**GPU, "kind": "<img src=x onerror=alert(1)>"}
    folder = pages(tmp_path, levers_record(*(row | {"measured_peak_tflops_per_s": 1.0} for row in ROWS), machine=evil))
    assert all("<img src=x" not in (folder / name).read_text() for name in ("report.html", "writeup.md"))


def test_what_is_asked_is_read_as_written_and_keeps_its_time_where_it_is_the_same(tmp_path):
    asked = Asked(["a.json"], "paper", [{"stage": "x", "cell": {}}], ["d"], ["scale=paper"])
    path = tmp_path / "asked.json"
    write_asked(asked, path)
    before = path.stat().st_mtime_ns
    write_asked(asked, path)
    assert (path.stat().st_mtime_ns, asdict(read_asked(path))) == (before, asdict(asked))


@pytest.mark.parametrize("text", ["", "[1]", '{"records": [], "other": 1}'])
def test_a_file_that_asks_for_nothing_is_one_line(tmp_path, text):
    (tmp_path / "asked.json").write_text(text)
    with pytest.raises(UserError, match=r"asked\.json"):
        read_asked(tmp_path / "asked.json")
    with pytest.raises(UserError, match="nothing to report"):
        write_pages(Asked([]), stages(), tmp_path)


def test_a_stage_whose_times_are_mostly_unstable_shows_where_they_are_and_no_table(tmp_path):
    wild = {"samples_ms": [10.0, 200.0, 30.0, 90.0, 400.0]}
    text = (pages(tmp_path, levers_record(*(row | wild for row in ROWS))) / "writeup.md").read_text()
    section = text.split("\n## ")[1]
    assert "\n| " not in section
    assert "4 of 4 times" in section
    assert "(../results/levers/medium.csv)" in section


def test_a_change_that_two_stages_tell_of_stands_once():
    judged = {"ratio": 1.3, "low": 1.2, "high": 1.4, "verdict": "faster", "repeats": 1, "gain": "1.30×"}
    found = [Change("our flash attention", where, "2 ms", "1 ms", judged | {"ratio": ratio}) for where, ratio in TOLD]
    told = [Told(stages()["levers"], Section("", changes=[change]), (), "", pd.DataFrame()) for change in found]
    assert changes(told)[["where", "ratio"]].to_numpy().tolist() == [["levers", 1.3]]
