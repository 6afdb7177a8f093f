import importlib
import sqlite3
import subprocess
from dataclasses import replace

import pytest

from pipeline.instruments.profilers import nsys
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.ways import nsys_captures

DDP, FSDP = "pipeline.stages.ddp", "pipeline.stages.fsdp"


def given(package):
    """Return a stage's experiment, with a small cell and settings."""
    declared = importlib.import_module(f"{package}.cell")
    cell = declared.Cell(size="tiny", batch_size_per_rank=1, context_length=8)
    settings = declared.Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=1, nsys=True)
    return importlib.import_module(f"{package}.measure").EXPERIMENT, cell, settings


@pytest.mark.parametrize(
    ("asked", "reports", "told"),
    [
        (True, {"naive.nsys-rep", "overlap.nsys-rep"}, ["no column", None, "its importer lacks libraries", None]),
        (False, set(), ["no column"] * 4),
    ],
)
def test_captured_ways_have_a_capture_if_asked_for_or_a_row_that_says_why_not(
    monkeypatch, tmp_path, asked, reports, told
):
    captured = set()

    def capture(_command, report):
        captured.add(report.name)
        if "overlap" in report.name:
            raise nsys.CaptureFailed("its importer lacks libraries")

    monkeypatch.setattr(nsys, "capture", capture)
    monkeypatch.setattr(nsys_captures, "ranks_on", lambda: ("nccl", "cuda"))
    rows = [{"impl": impl, "waiting_busy_pct": []} for impl in ("naive", "overlap", "fsdp")]
    monkeypatch.setattr(nsys_captures, "measure_cell", lambda *_: [{"impl": "naive", "phase": "forward"}, *rows])
    experiment, cell, settings = given(DDP)
    settings = replace(settings, nsys=asked)
    rows = nsys_captures.measure_and_capture(DDP, experiment, cell, settings, Stopwatch(), files_dir=tmp_path)
    assert captured == reports
    assert [row.get("not_by_nsys", "no column") for row in rows] == told


@pytest.mark.slow
@pytest.mark.parametrize("package", [DDP, FSDP])
def test_the_program_runs_a_step_of_a_captured_way_on_all_ranks(package):
    experiment, cell, settings = given(package)
    way = [way.name for way in experiment.ways if way.captured][-1]
    done = subprocess.run(
        nsys_captures.command(package, way, cell, settings), capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("package", [DDP, FSDP])
def test_on_gpus_a_capture_holds_kernels_of_all_ranks_and_ranges_of_one_step(package, tmp_path):
    if nsys.obstacle():
        pytest.skip(nsys.obstacle())
    experiment, cell, settings = given(package)
    way = next(way.name for way in experiment.ways if way.captured)
    nsys.capture(nsys_captures.command(package, way, cell, settings), tmp_path / "capture.nsys-rep")
    nsys.export(tmp_path / "capture.nsys-rep", tmp_path / "capture.sqlite")
    with sqlite3.connect(tmp_path / "capture.sqlite") as database:
        devices = database.execute("SELECT DISTINCT deviceId FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        ranges = database.execute("SELECT COUNT(*) FROM NVTX_EVENTS WHERE text = 'optimizer'").fetchone()
    assert len(devices) == cell.world_size
    assert ranges == (cell.world_size,)
