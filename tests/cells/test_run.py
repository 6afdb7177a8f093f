import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from pipeline.cells import run
from pipeline.cells.devices import TooFewGPUs
from pipeline.errors import Skipped

START = run.ProcessStart("ordinary", 0.0, "python -m pipeline measure fake")


@dataclass(frozen=True)
class Cell:
    gpus: int = 1

    def row_keys(self):
        return [{"pass": "forward"}, {"pass": "backward"}]


@dataclass(frozen=True)
class Settings:
    threads: int = 0


@pytest.fixture(autouse=True)
def same_process_afterwards(monkeypatch):
    """Cells pin threads and choose devices for the life of their process, which here is that of all tests."""
    affinity, threads, environment = os.sched_getaffinity(0), torch.get_num_threads(), dict(os.environ)
    monkeypatch.setattr(run.freshness, "code_digest", lambda _module: "digest")
    yield
    os.sched_setaffinity(0, affinity)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


def record_of(monkeypatch, measure, cell=Cell(), settings=Settings(), granted=None):
    monkeypatch.setattr(run, "_measure_function", lambda _stage: measure)
    return run.run_cell("fake", cell, settings, granted, START)


def raising(error):
    def measure(_cell, _settings, _stopwatch):
        raise error

    return measure


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Skipped("no CUDA"), "skipped", "no CUDA"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nmore"), "oom", "CUDA out of memory. Tried 2 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom", "DefaultCPUAllocator"),
    ],
)
def test_an_outcome_becomes_a_row_for_each_of_the_cells_rows(monkeypatch, error, status, reason):
    rows = record_of(monkeypatch, raising(error))["rows"]
    assert [(row["pass"], row["status"]) for row in rows] == [("forward", status), ("backward", status)]
    assert all(row["reason"].startswith(reason) and "\n" not in row["reason"] for row in rows)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), KeyError("size"), ValueError("bug")])
def test_a_bug_is_no_outcome(monkeypatch, error):
    with pytest.raises(type(error)):
        record_of(monkeypatch, raising(error))


def test_fewer_gpus_than_needed_is_skipped_with_the_reason(monkeypatch):
    monkeypatch.setattr(run.machine, "gpu_count", lambda: 8)
    monkeypatch.setattr(run, "claim_gpus", lambda count: type("Claim", (), {"device_ids": ("0",) * count}))
    rows = record_of(monkeypatch, lambda *_: [], cell=Cell(gpus=4), granted=2)["rows"]
    assert {row["reason"] for row in rows} == {str(TooFewGPUs(4, 2))}
    assert {row["status"] for row in rows} == {"skipped"}


def test_without_any_gpu_the_cell_runs_on_the_cpu(monkeypatch):
    monkeypatch.setattr(run.machine, "gpu_count", lambda: 0)
    record = record_of(monkeypatch, lambda *_: [{"pass": "forward", "status": "ok"}], cell=Cell(gpus=4), granted=0)
    assert record["rows"] == [{"pass": "forward", "status": "ok"}]


def test_snakemakes_thread_variables_do_not_bind_a_cell(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    seen = []
    cores = len(os.sched_getaffinity(0))
    record = record_of(monkeypatch, lambda *_: seen.append(torch.get_num_threads()) or [])
    assert seen == [cores]
    assert record["machine"]["threads"] == cores
    assert os.environ["OMP_NUM_THREADS"] == str(cores)


def test_a_cell_keeps_to_the_threads_that_its_settings_name(monkeypatch):
    seen = []
    measure = lambda *_: seen.append((torch.get_num_threads(), len(os.sched_getaffinity(0)))) or []  # noqa: E731
    assert record_of(monkeypatch, measure, settings=Settings(threads=1))["machine"]["threads"] == 1
    assert seen == [(1, 1)]


def test_the_record_says_how_and_when_the_process_was_started(monkeypatch):
    record = record_of(monkeypatch, lambda *_: [])
    assert record["process"] == "ordinary"
    assert record["command"] == START.command
    assert record["seconds"]["start_up"] > 1e9  # issued in 1970
    assert {"set_up", "measuring"} < set(record["seconds"])


def test_a_stage_that_keeps_files_is_given_their_folder(monkeypatch, tmp_path):
    def measure(_cell, _settings, _stopwatch, files_dir):
        (files_dir / "capture").write_text("kept")
        return [{"pass": "forward", "status": "ok"}]

    monkeypatch.setattr(run, "_measure_function", lambda _stage: measure)
    run.run_cell("fake", Cell(), Settings(), None, START, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["capture"]


def test_torch_starts_no_threads_where_its_count_is_right_already():
    script = (
        "import os, torch\n"
        "from pipeline.cells.run import _start_torch\n"
        "_start_torch(torch.get_num_threads(), with_cuda=False)\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's own
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout == "1\n"
