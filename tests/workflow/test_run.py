import json
import os
import re
import shutil
from pathlib import Path

import psutil
import pytest

from pipeline.cells import layout
from pipeline.stages.memory.cell import Cell

from ..processes import wait_until

pytestmark = pytest.mark.workflow

FOUR_CELLS = "overrides={timing: {grids: [{size: [tiny], context_length: [16, 17], precision: [fp32, bf16]}]}}"


def test_jobs_run_in_snakemakes_own_environment_even_if_it_is_not_activated(project):
    project.variables["PATH"] = os.defpath
    target = "results/precision/accumulation.csv"
    project.snakemake("--cores", "1", target, "--config", "scale=laptop")
    assert (project.root / target).is_file()


def test_one_command_makes_all_tables_and_pages_and_a_second_run_does_nothing(measured, plan):
    text = (measured.root / "reports/writeup.md").read_text()
    assert "Cells (one configuration each, in its own process): 4;" in text
    assert (measured.root / "reports/course.md").is_file()
    assert json.loads((measured.root / "reports/summary.json").read_text())["scale"] == "few"
    tables = sorted(path.name for path in (measured.root / "results/timing").glob("*.csv"))
    assert tables == ["bf16.csv", "cells.csv", "fp32.csv"]
    for figure in [line.split("](")[1].split(")")[0] for line in text.splitlines() if line.startswith("![")]:
        assert (measured.root / "reports" / figure).is_file()
    assert plan(measured, "reports/writeup.md") == {}


def test_a_first_run_forces_nothing_and_a_quiet_dry_run_lists_cells_by_stage(measured, tmp_path):
    output = measured.snakemake("--directory", str(tmp_path), "--dry-run", "--quiet")
    assert not (tmp_path / ".snakemake/changed").exists()
    _using, header, *stages, to_do = output.splitlines()
    assert header.split() == ["stage", "cells", "about"]
    assert {tuple(line.split()[:2]) for line in stages} == {("timing", "2"), ("flash", "1"), ("accounting", "1")}
    assert to_do.startswith("To do: 4 cells, 7 tables, 1 write-up, about ")


FILES = {
    "results/timing/bf16.csv": {"tabulate_timing", "writeup"},
    "results/timing/cells.csv": {"tabulate_cells", "writeup"},
    "reports/figures/accounting/mesh_times.svg": {"writeup"},
    "reports/writeup.md": {"writeup"},
    "reports/course.md": {"writeup"},
    "reports/report.html": {"writeup"},
    "reports/summary.json": {"writeup"},
}


def lose(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def damage(path):
    path.write_text(path.read_text()[:40])


def empty_but_keep_its_time(path):
    file = path.stat()
    path.write_text("")
    os.utime(path, ns=(file.st_atime_ns, file.st_mtime_ns))


@pytest.mark.parametrize(("change", "files"), [(lose, len(FILES)), (damage, 3), (empty_but_keep_its_time, 3)])
def test_lost_or_changed_files_are_made_again_with_everything_made_from_them(project, plan, change, files):
    for damaged, rules in list(FILES.items())[:files]:
        before = (project.root / damaged).read_bytes(), (project.root / damaged).stat()
        change(project.root / damaged)
        planned = set(plan(project, "reports/writeup.md"))
        assert planned == rules, damaged
        (project.root / damaged).write_bytes(before[0])
        os.utime(project.root / damaged, ns=(before[1].st_atime_ns, before[1].st_mtime_ns))


def test_lost_or_emptied_records_are_measured_again_and_a_binary_recipe_is_stale(project, plan):
    (project.root / "results/timing/.bf16.csv.recipe").write_bytes(b"\xff\xfe")
    assert plan(project, "results/timing/bf16.csv") == {"tabulate_timing": 1}
    first, second = project.records()
    lose(second.parents[1])
    assert plan(project, "reports/writeup.md")["measure_timing"] == 1
    assert "measure_timing" not in plan(project, measure=False)
    first.write_text("")
    assert plan(project, "reports/writeup.md")["measure_timing"] == 2


def processes_in(folder):
    return [p for p in psutil.process_iter(["cwd", "cmdline"]) if p.info["cwd"] == str(folder)]


@pytest.mark.slow
def test_killing_snakemake_ends_its_cell_and_the_next_run_measures_the_rest(project):
    runner = project.root / "src/pipeline/cells/run.py"  # editing it makes no cell stale
    sound, first_line = runner.read_text(), "    try:\n        return measure(cell, settings, stopwatch)"
    # As in a capture: the program under nsys has its own session.
    hangs = "    import subprocess\n    subprocess.run(['sleep', '1000'], start_new_session=True)\n"
    project.edit(runner, first_line, hangs + first_line)
    run = project.start("results/timing/cells.csv", "--config", FOUR_CELLS)
    wait_until(lambda: any(p.info["cmdline"] == ["sleep", "1000"] for p in processes_in(project.root)))
    finished = {path: path.stat().st_mtime_ns for path in project.records()}
    run.kill()
    run.wait()
    wait_until(lambda: not processes_in(project.root))
    assert project.records() == list(finished)
    runner.write_text(sound)
    project.snakemake("--unlock")
    output = project.snakemake("results/timing/cells.csv", "--config", FOUR_CELLS)
    assert f"measured {4 - len(finished)} cells: " in output
    assert len(project.records()) == 4
    assert not list(project.root.glob("results/timing/cells/**/.*"))
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


@pytest.mark.slow
def test_snakemakes_own_report_accepts_every_caption(project):
    project.snakemake("--report", "report.html")
    page = (project.root / "report.html").read_text()
    for words in ("How fast does each model size train", "The rows for fp32", "a chart of the stage"):
        assert words in page
    # The page is the first result.
    categories = json.loads(re.search(r"var categories = (\{.*?\});?\n", page)[1])
    first = min(categories)
    assert [path for paths in categories[first].values() for path in paths] == ["reports/report.html"]


PRINTING_LOGGER = """
import sys

from snakemake_logger_plugin_cells import LogHandler as Cells


class LogHandler(Cells):
    def emit(self, record):
        match getattr(record, "event", None):
            case "job_info":
                print(f"<{record.rule_name} {record.threads}>", file=sys.stderr, flush=True)
            case "shellcmd":
                print(record.getMessage(), file=sys.stderr, flush=True)
"""


def test_a_cell_that_must_run_alone_takes_all_cores_and_files_go_to_their_own_stage(project):
    project.append("src/pipeline/instruments/machine/identity.py", "\n\ndef gpu_count():\n    return 8\n")
    project.append("src/pipeline/cells/own_cores.py", "\n\ndef each_gpu_has_own_cores():\n    return True\n")
    plugin = project.root / "src/snakemake_logger_plugin_telling/__init__.py"
    plugin.parent.mkdir()
    plugin.write_text(PRINTING_LOGGER)
    shutil.rmtree(project.root / "results/timing/cells/precision=bf16")
    grids = (
        "overrides={collectives: {grids: [{backend: [gloo]}]}, flash: {grids: [{seq_len: [16]}]},"
        " accounting: {grids: [{question: [fsdp]}]},"
        " memory: {grids: [{size: [tiny], context_length: [16], mode: [inference]}]}}"
    )
    output = project.snakemake("--dry-run", "-p", "--cores", "4", "--logger", "telling", "--config", grids)
    threads = set(re.findall(r"<measure_(\w+) (\d+)>", output))
    assert threads == {("collectives", "4"), ("timing", "1"), ("flash", "1"), ("accounting", "1"), ("memory", "1")}
    cell = Cell(size="tiny", context_length=16, mode="inference")
    record = layout.record_path(Path("results"), "memory", cell)
    assert f"--files={str(record.with_suffix('')).replace('cells', 'files')}" in output
