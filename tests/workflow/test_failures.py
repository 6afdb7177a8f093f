"""Runs in which something fails: the rest is measured and written up, and what failed is named and tried again."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

TINY = "size=tiny context_length=16 batch_size=4 warmup_steps=5 mode=eager repeat=1"
BF16 = f"timing precision=bf16 {TINY}"
BF16_LOG = f"logs/{BF16.replace(' ', '/')}.log"


def break_code(project, path, line, bug):
    """Put a bug behind a line of the project's code, indented like it."""
    file = project.root / "src/pipeline/stages" / path
    text = file.read_text()
    assert line in text
    file.write_text(text.replace(line, f"{line}\n    {bug}", 1))


def break_bf16(project):
    break_code(project, "timing/measure.py", "    _require(cell, device)", "assert cell.precision != 'bf16', 'a bug'")


def pipeline(project, *words):
    command = [sys.executable, "-m", "pipeline", *words]
    return subprocess.run(command, cwd=project.root, env=project.environment(), capture_output=True, text=True)


def test_a_bug_fails_its_cell_alone_and_the_write_up_names_it(project):
    break_bf16(project)
    code, output = project.snakemake("--cores", "1", "--resources", "gpu=8", "reports/writeup.md")
    assert code == 1
    assert [path.relative_to(project.root / "results/timing/cells").parts[0] for path in project.records()] == [
        "precision=fp32"
    ]
    log = (project.root / BF16_LOG).read_text()
    assert "Traceback" in log
    assert "AssertionError: a bug" in log
    assert f"snakemake: failed: {BF16}: AssertionError: a bug ({BF16_LOG})" in output.splitlines()[-10:]

    page = (project.root / "reports/writeup.md").read_text()
    assert "1 cell, at scale" in page
    assert "**Missing, because it failed: 1 cell.**" in page
    assert f"| `{BF16}` | `AssertionError: a bug` | `{BF16_LOG}` |" in page
    # The table of bf16 from the run before, of a record that is gone, is gone too.
    assert sorted(path.name for path in project.root.glob("results/timing/*.csv")) == ["cells.csv", "fp32.csv"]
    published = pipeline(project, "publish", "snapshot")
    assert published.returncode == 0, published.stderr
    compared = pipeline(project, "compare", "snapshot", "results")
    assert compared.returncode == 0, compared.stderr

    assert project.planned("reports/writeup.md") == {
        "measure_timing": 1,
        "tabulate_timing": 1,
        "tabulate_cells": 1,
        "section_timing": 1,
        "writeup": 1,
        "total": 5,
    }
    written_at = (project.root / "reports/writeup.md").stat().st_mtime_ns
    code, output = project.snakemake("reports/writeup.md")  # fails in the same way: there is nothing new to write
    assert code == 1
    assert (project.root / "reports/writeup.md").stat().st_mtime_ns == written_at


def test_a_stage_without_a_cell_and_a_broken_section_leave_the_others(project):
    break_bf16(project)
    break_code(project, "accounting/measure.py", ") -> Rows:", "raise SystemExit('without a trace')")
    break_code(project, "timing/report/section.py", ") -> Section:", "raise ValueError('a broken section')")
    grid = "overrides={accounting: {grids: [{question: [fsdp]}]}}"
    code, output = project.snakemake("--config", grid)
    assert code == 1
    page = (project.root / "reports/writeup.md").read_text()
    assert "**Missing, because it failed: 2 cells and 1 report step.** No cell of accounting could be" in page
    for what in (BF16, "accounting question=fsdp size=XXL batch_size=1", "section timing"):
        assert f"| `{what}` | " in page
        assert sum(line.startswith(f"snakemake: failed: {what}: ") for line in output.splitlines()) == 1
    assert "`ValueError: a broken section` | `logs/timing/section.log` |" in page
    assert "\n## Timing" not in page
    assert not (project.root / "reports/sections/timing.md").exists()


def test_an_interrupted_run_stops_and_writes_nothing_up(project):
    before = (project.root / "reports/writeup.md").read_text()
    four_cells = "overrides={timing: {grids: [{size: [tiny], context_length: [16, 17], precision: [fp32, bf16]}]}}"
    run = project.start("--config", four_cells)
    for line in run.stdout:
        if "of 2 cells done" in line:
            break
    time.sleep(1.0)  # Snakemake does not notice an interrupt while it prints
    os.killpg(run.pid, signal.SIGINT)
    output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "snakemake: failed" not in output
    assert (project.root / "reports/writeup.md").read_text() == before


def test_what_failed_is_read_from_nothing_else(project):
    code, output = project.snakemake("--config", "failures=config/config.yaml")
    assert code == 1
    assert output.strip().splitlines()[-1] == "snakemake: config/config.yaml is no list of failures"
