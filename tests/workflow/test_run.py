import json
import os
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest

from pipeline.cells import layout
from pipeline.stages.memory.cell import Cell

pytestmark = pytest.mark.workflow

FOUR_CELLS = "overrides={timing: {grids: [{size: [tiny], context_length: [16, 17], precision: [fp32, bf16]}]}}"


def wait_until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def test_the_one_command_writes_it_all_up(measured):
    text = (measured.root / "reports/writeup.md").read_text()
    assert "2 cells, each a setting measured in a process of its own, at scale `two_cells`" in text
    assert "at scale <code>two_cells</code>" in (measured.root / "reports/report.html").read_text()
    assert json.loads((measured.root / "reports/summary.json").read_text())["scale"] == "two_cells"
    assert sorted(path.name for path in (measured.root / "results/timing").glob("*.csv")) == [
        "bf16.csv",
        "cells.csv",
        "fp32.csv",
    ]
    for figure in [line.split("](")[1].split(")")[0] for line in text.splitlines() if line.startswith("![")]:
        assert (measured.root / "reports" / figure).is_file()


def test_a_second_run_does_nothing(measured):
    code, output = measured.snakemake("reports/writeup.md")
    assert code == 0
    assert "Nothing to be done" in output


def test_a_first_run_forces_nothing(measured, tmp_path):
    code, output = measured.snakemake("--directory", str(tmp_path), "--dry-run")
    assert code == 0, output
    assert ".snakemake/changed" not in output
    assert "output files have to be generated" in output


def test_a_quiet_dry_run_is_the_cells_of_each_stage_and_their_time(measured, tmp_path):
    code, output = measured.snakemake("--directory", str(tmp_path), "--dry-run", "--quiet")
    assert code == 0
    _using, header, timing, to_do = output.splitlines()
    assert header.split() == ["stage", "cells", "about"]
    assert timing.split()[:2] == ["timing", "2"]
    assert to_do.startswith("To do: 2 cells, 3 tables, 1 section, 1 write-up, about ")


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    ("lost", "rules"),
    [
        ("results/timing/cells/precision=bf16", {"measure_timing", "tabulate_timing", "section_timing"}),
        ("results/timing/bf16.csv", {"tabulate_timing"}),
        ("results/timing/cells.csv", {"tabulate_cells"}),
        ("reports/sections/timing.md", {"section_timing"}),
        ("reports/figures/timing", {"section_timing"}),
        ("reports/sections/timing.html.json", {"section_timing"}),
        ("reports/report.html", set()),
        ("reports/summary.json", set()),
    ],
)
def test_what_is_lost_is_made_again_with_all_that_is_made_of_it(project, plan, lost, rules):
    remove(project.root / lost)
    planned = plan(project, "reports/writeup.md")
    assert rules | {"writeup"} <= set(planned)
    assert planned.get("measure_timing", 0) == ("measure_timing" in rules)
    assert plan(project, measure=False).get("measure_timing", 0) == 0


def damage(path):
    path.write_text(path.read_text()[:40])


def empty_but_keep_its_time(path):
    file = path.stat()
    path.write_text("")
    os.utime(path, ns=(file.st_atime_ns, file.st_mtime_ns))


@pytest.mark.parametrize("spoil", [damage, empty_but_keep_its_time])
@pytest.mark.parametrize(
    ("spoilt", "rules"),
    [
        ("results/timing/bf16.csv", {"tabulate_timing", "writeup"}),
        ("results/timing/cells.csv", {"tabulate_cells", "writeup"}),
        ("reports/figures/timing/achieved.svg", {"section_timing", "writeup"}),
        ("reports/sections/timing.html.json", {"section_timing", "writeup"}),
        ("reports/writeup.md", {"writeup"}),
        ("reports/summary.json", {"writeup"}),
    ],
)
def test_what_was_changed_after_it_was_made_is_made_again(project, plan, spoil, spoilt, rules):
    spoil(project.root / spoilt)
    assert set(plan(project, "reports/writeup.md")) == rules


def test_a_recipe_that_is_no_text_is_no_recipe(project, plan):
    (project.root / "results/timing/.bf16.csv.recipe").write_bytes(b"\xff\xfe")
    assert "tabulate_timing" in plan(project, "results/timing/bf16.csv")


def test_an_emptied_record_is_measured_again(project, plan):
    project.records()[0].write_text("")
    assert plan(project, "reports/writeup.md")["measure_timing"] == 1


def test_one_figure_that_is_lost_is_drawn_again_and_nothing_else(project, plan):
    figures = sorted((project.root / "reports/figures/timing").glob("*.svg"))
    figures[0].unlink()
    assert plan(project, "reports/sections/timing.md") == {"section_timing": 1}
    code, output = project.snakemake()
    assert code == 0, output
    assert sorted((project.root / "reports/figures/timing").glob("*.svg")) == figures
    assert re.findall(r"left\] (.+)", output) == ["section timing", "write-up"]
    assert plan(project) == {}


@pytest.mark.usefixtures("without_worker")
@pytest.mark.slow
def test_a_lost_record_is_measured_again_once(project):
    lost = next(path for path in project.records() if "precision=bf16" in path.parts)
    lost.unlink()
    assert project.planned("results/timing/fp32.csv") == {}  # it has no part in that one
    code, output = project.snakemake("results/timing/bf16.csv")
    assert code == 0, output
    assert lost.is_file()
    code, output = project.snakemake("reports/writeup.md")
    assert code == 0, output
    assert project.planned("reports/writeup.md") == {}
    assert project.planned() == {}


@pytest.mark.usefixtures("without_worker")
def test_a_cells_files_are_where_its_rule_says_whichever_stage_comes_last(project):
    after = "accounting: {grids: [{question: [fsdp]}]}"
    quick = "settings: {threads: 1, budget_s: 0.1}, grids: [{size: [tiny], context_length: [16], mode: [inference]}]"
    cell = Cell(size="tiny", context_length=16, mode="inference")
    record = layout.record_path(Path("results"), "memory", cell)
    code, output = project.snakemake(str(record), "--config", f"overrides={{memory: {{{quick}}}, {after}}}")
    assert code == 0, output
    kept = project.root / str(record.with_suffix("")).replace("cells", "files")
    assert (kept / "snapshot.pickle").is_file()


@pytest.mark.slow
def test_a_killed_run_goes_on_and_keeps_what_was_finished(project):
    before = {path: path.stat().st_mtime_ns for path in project.records()}
    run = project.start("results/timing/cells.csv", "--config", FOUR_CELLS)
    for line in run.stdout:
        if "of 2 cells done" in line:
            break
    time.sleep(1.0)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    half_written = list(project.root.glob("results/timing/cells/**/.*"))
    assert not half_written
    project.snakemake("--unlock")
    code, output = project.snakemake("results/timing/cells.csv", "--config", FOUR_CELLS)
    assert code == 0, output
    assert len(project.records()) == 4
    assert {path: path.stat().st_mtime_ns for path in before} == before


def processes_in(folder):
    return [p for p in psutil.process_iter(["cwd", "cmdline"]) if p.info["cwd"] == str(folder)]


@pytest.mark.slow
def test_a_killed_snakemake_takes_its_cell_along_and_the_next_run_measures_it_once(project):
    step = project.root / "src/pipeline/stages/timing/measure.py"
    sound = step.read_text()
    # As a capture does: the program under nsys has a session of its own.
    hangs = "    import subprocess\n    subprocess.run(['sleep', '100'], start_new_session=True)\n"
    step.write_text(sound.replace("    _require(cell, device)\n", f"    _require(cell, device)\n{hangs}"))
    record_path = next(path for path in project.records() if "precision=bf16" in path.parts)
    record_path.unlink()
    run = project.start("results/timing/bf16.csv")
    wait_until(lambda: any(p.info["cmdline"] == ["sleep", "100"] for p in processes_in(project.root)))
    run.kill()
    run.wait()
    wait_until(lambda: not processes_in(project.root))
    assert not [path for path in record_path.parent.iterdir() if path.is_file()]
    step.write_text(sound)
    code, output = project.snakemake("--unlock")
    assert code == 0, output
    code, output = project.snakemake("results/timing/bf16.csv")
    assert code == 0, output
    assert output.count("] timing ") == 1, output
    assert record_path.is_file()


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused_by_the_lock(project):
    run = project.start("results/timing/cells.csv", "--config", FOUR_CELLS)
    for line in run.stdout:
        if "cells done" in line:
            break
    code, output = project.snakemake("results/timing/cells.csv", "--config", FOUR_CELLS)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert code != 0
    assert "cannot be locked" in output


@pytest.mark.slow
def test_snakemakes_own_report_takes_every_caption(project):
    code, output = project.snakemake("--report", "report.html")
    assert code == 0, output
    page = (project.root / "report.html").read_text()
    for words in ("How fast does each model size train", "The rows for fp32", "stand at the figure"):
        assert words in page
    # Each figure has its own title for a caption, and the page is the first of the results.
    (title,) = re.findall(r"!\[(Achieved [^\]]*)\]", (project.root / "reports/writeup.md").read_text())
    assert title in page
    categories = json.loads(re.search(r"var categories = (\{.*?\});?\n", page)[1])
    first = min(categories)
    assert [path for paths in categories[first].values() for path in paths] == ["reports/report.html"]


THREADS = """
import sys

from snakemake_logger_plugin_cells import LogHandler as Cells


class LogHandler(Cells):
    def emit(self, record):
        if getattr(record, "event", None) == "job_info":
            print(f"<{record.rule_name} {record.threads}>", file=sys.stderr, flush=True)
"""


def test_nothing_runs_beside_a_cell_that_is_to_be_alone(project):
    machine = project.root / "src/pipeline/instruments/machine/identity.py"
    machine.write_text(machine.read_text() + "\n\ndef gpu_count():\n    return 8\n")
    plugin = project.root / "src/snakemake_logger_plugin_threads/__init__.py"
    plugin.parent.mkdir()
    plugin.write_text(THREADS)
    shutil.rmtree(project.root / "results/timing/cells/precision=bf16")
    grids = "overrides={flash: {grids: [{seq_len: [16]}]}, accounting: {grids: [{question: [fsdp]}]}}"
    code, output = project.snakemake("--dry-run", "--cores", "4", "--logger", "threads", "--config", grids)
    assert code == 0, output
    threads = set(re.findall(r"<measure_(\w+) (\d+)>", output))
    assert threads == {("timing", "4"), ("flash", "1"), ("accounting", "1")}


def test_a_run_without_a_folder_for_locks_ends_before_it_measures_with_one_line(project, monkeypatch):
    monkeypatch.setenv("PIPELINE_LOCKS", str(project.root / "config/config.yaml"))
    code, output = project.snakemake("--forceall")
    assert code != 0
    assert "snakemake: cannot lock" in output
    assert "Traceback" not in output
    assert "cells done" not in output
