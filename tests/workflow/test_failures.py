import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from pipeline.cells.record import has_failed, read_record
from pipeline.measure_command import DISK_IS_FULL
from pipeline.registry import stages

from ..processes import wait_until
from .conftest import WITHOUT_WORKER, Project

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

CELL = "timing precision=bf16 size=tiny context_length={} batch_size=4 warmup_steps=5 repeat=1"
FIRST_LINE = '    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")'  # of a cell
# By context length: what ends the cell, and the reason in its record.
BUGS = {
    16: ("raise AssertionError('a bug')", "AssertionError: a bug"),
    17: ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended by SIGKILL"),
    18: ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "ended by SIGSEGV"),
}


def break_code(project, path, line, bug):
    """Insert a bug after a line of the project's code, indented by four spaces."""
    project.edit(f"src/pipeline/{path}", line, f"{line}\n    {bug}", count=1)


def break_bf16(project):
    for length, (bug, _) in BUGS.items():
        line = f"if (cell.precision, cell.context_length) == ('bf16', {length}): {bug}"
        break_code(project, "stages/timing/measure.py", FIRST_LINE, line)


def failed_records(project):
    records = [read_record(path, stages()) for path in project.records()]
    return {each["cell"]["context_length"]: each["rows"][0]["reason"] for each in records if has_failed(each)}


@pytest.mark.parametrize(("variables", "lengths"), [({}, list(BUGS)), (WITHOUT_WORKER, [17])])
def test_a_cell_that_fails_leaves_a_record_and_is_named_in_the_same_runs_report(project, variables, lengths):
    break_bf16(project)
    project.variables |= variables
    grids = f"overrides={{timing: {{grids: [{{size: [tiny], context_length: {lengths}, precision: [bf16]}}]}}}}"
    output = project.snakemake("--cores", "1", "reports/writeup.md", "--config", grids, code=1)
    reasons = {length: BUGS[length][1] for length in lengths}
    assert failed_records(project) == reasons
    page = (project.root / "reports/writeup.md").read_text()
    for length, reason in reasons.items():
        cell = CELL.format(length)
        log = f"logs/{cell.replace(' ', '/')}.log"
        assert f"snakemake: failed: {cell}: {reason} ({log})" in output.splitlines()[-10:]
        assert f"| {cell.replace(' ', ' | `', 1)}` | `{reason}` | `{log}` |" in page.split("\n## ")[0]
    assert ",failed," in (project.root / "results/timing/cells.csv").read_text()


def test_failed_cells_can_be_published_and_compared_and_only_they_are_retried(project, plan):
    break_bf16(project)
    project.snakemake("results/timing/bf16.csv", "--quiet", code=1)
    assert "Traceback" in (project.root / f"logs/{CELL.format(16)}.log".replace(" ", "/")).read_text()
    for words in (["results/timing/fp32.csv"], ["--config", "measure=false"]):  # in which no cell fails
        project.snakemake(*words)
    for words in (["publish", "snapshot"], ["compare", "snapshot", "results"]):
        command = [sys.executable, "-m", "pipeline", *words]
        result = subprocess.run(command, cwd=project.root, env=project.environment(), capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
    remaining = {"measure_timing": 1, "tabulate_timing": 1, "tabulate_cells": 1, "writeup": 1}
    assert plan(project, "reports/writeup.md") == remaining

    project.edit("src/pipeline/stages/timing/measure.py", "raise AssertionError('a bug')", "pass")
    assert f"{CELL.format(16)} (failed before)" in project.snakemake()
    assert failed_records(project) == {}
    assert plan(project) == {}


def test_a_stage_whose_cells_all_fail_has_a_section_and_a_broken_section_is_an_error(project):
    break_code(project, "stages/accounting/measure.py", ") -> list[dict[str, Any]]:", "raise SystemExit(7)")
    grid = "overrides={accounting: {grids: [{question: [fsdp]}]}}"
    project.snakemake("--config", grid, code=1)
    page = (project.root / "reports/writeup.md").read_text()
    what = "accounting question=fsdp size=XXL batch_size=1"
    assert "| `exit code 7, nothing in its log` | " in page.split("\n## ")[0]
    assert "No results: " in page
    break_code(project, "stages/timing/report.py", ") -> Section:", "raise ValueError('a broken section')")
    output = project.snakemake("--config", grid, code=1)
    assert "a broken section" in output
    assert f"snakemake: failed: {what}: exit code 7, nothing in its log (" in output


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("stages/timing/measure.py", FIRST_LINE),
        ("worker/child.py", "def preload() -> None:"),
    ],
)
def test_an_interrupted_run_stops_and_writes_no_report(project, path, line):
    before = (project.root / "reports/writeup.md").read_text()
    records = {path: path.read_text() for path in project.records()}
    break_code(project, path, line, "open('begun', 'w'); __import__('time').sleep(60)")
    project.records()[0].unlink()
    run = project.start()
    wait_until((project.root / "begun").exists)
    time.sleep(1.0)  # Snakemake does not notice an interrupt while it prints
    os.killpg(run.pid, signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert not any(words in output for words in ("snakemake: failed", "Error in rule", "Exception"))
    assert output.rstrip().endswith("run the same command to continue")
    # The interrupted cell has no record.
    assert {path: path.read_text() for path in project.records()}.items() < records.items()
    assert (project.root / "reports/writeup.md").read_text() == before


# The first of them has a record.
FIVE_CELLS = {"timing": {"grids": [{"size": ["tiny"], "context_length": [16, 17, 18, 19, 20]}]}}


def test_a_run_whose_disk_fills_up_keeps_what_it_measured_and_stops(measured, small_disk, plan):
    disk = small_disk(size_mib=160)
    project = Project(shutil.copytree(measured.root, disk.folder / "project"), WITHOUT_WORKER)
    free = shutil.disk_usage(disk.folder).free
    run = project.start("--config", f"overrides={json.dumps(FIVE_CELLS)}")
    wait_until(lambda: shutil.disk_usage(disk.folder).free < free - 3 * 2**20)
    time.sleep(1)  # the space is tried, then reserved; torch is imported later
    disk.fill()
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 1
    assert len(project.records()) == len(measured.records()) + 1, output
    assert output.splitlines().count(DISK_IS_FULL) == 1
    assert output.count("Error in rule measure_timing") == 1
    assert "Traceback" not in output

    (disk.folder / "filler").unlink()
    assert plan(project, "results/timing/cells.csv", overrides=FIVE_CELLS)["measure_timing"] == 3
