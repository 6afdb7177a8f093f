import os
import time
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from pipeline.cells import quiet_host, run
from pipeline.cells.devices import Claim
from pipeline.cells.rows import Row, RowTypes, column
from pipeline.cells.scheduler import SlurmJob
from pipeline.errors import Skipped
from pipeline.instruments.machine.gpus import Gpu

ROW = {"phase": "forward", "status": "ok"}
START = run.ProcessStart("ordinary", 0.0, "python -m pipeline measure fake")


@dataclass(frozen=True)
class Cell:
    gpus: int = 1

    def row_keys(self):
        return [{"phase": "forward"}, {"phase": "backward"}]


@dataclass(frozen=True)
class Settings:
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class Phase(Row):
    KEYS = ("phase",)
    phase: str = column("which")


def stage(measure):
    named = {"name": "fake", "package": "fake", "row_types": RowTypes.one(Phase)}
    return SimpleNamespace(**named, measure_function=lambda: measure, needed_bytes=lambda *_: 0)


@pytest.fixture(autouse=True)
def same_process_afterwards(monkeypatch, own_locks):
    """Undo what a cell changes for the life of its process (cores, threads, environment), which all tests share."""
    affinity, threads, environment = os.sched_getaffinity(0), torch.get_num_threads(), dict(os.environ)
    monkeypatch.setattr(run.freshness, "code_facts", lambda *_, **__: {"digest": "digest", "modules": {}})
    yield
    os.sched_setaffinity(0, affinity)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def gpus(monkeypatch):
    def present(count, *claimed):
        monkeypatch.setattr(run.identity, "gpu_count", lambda: count)
        monkeypatch.setattr(run, "claim_gpus", lambda count_wanted, _command: Claim(claimed or ("0",) * count_wanted))

    return present


def record_of(measure, cell=Cell(), settings=Settings(), granted=None, start=START, **words):
    return run.run_cell(stage(measure), cell, settings, granted, start, **words)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Skipped("no CUDA"), "skipped", "no CUDA"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nmore"), "oom", "CUDA out of memory. Tried 2 GiB"),
        (MemoryError(), "oom", "MemoryError"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom", "DefaultCPUAllocator"),
    ],
)
def test_a_skip_or_out_of_memory_fills_every_row_of_the_cell(error, status, reason):
    rows = record_of(Mock(side_effect=error))["rows"]
    assert [(row["phase"], row["status"]) for row in rows] == [("forward", status), ("backward", status)]
    assert all(row["reason"].startswith(reason) and "\n" not in row["reason"] for row in rows)


@pytest.mark.parametrize(
    ("needed_gb", "refused", "warned"),
    [
        (33.6, "needs at least 33.6 GB of memory, this machine has 16.0 GB; `measure --force` runs it anyway", ""),
        (12, None, "needs at least 12.0 GB of memory, 9.0 GB are free: it may be killed\n"),
        *((needed_gb, None, "") for needed_gb in (8, 0)),
    ],
)
def test_a_cell_over_the_memory_limit_is_refused_and_low_free_memory_warns(
    monkeypatch, capsys, needed_gb, refused, warned
):
    monkeypatch.setattr(run, "memory_limit_bytes", lambda: 16e9)
    monkeypatch.setattr(run.psutil, "virtual_memory", lambda: SimpleNamespace(available=9e9))
    assert run.too_large(SimpleNamespace(needed_bytes=lambda *_: needed_gb * 1e9), None, None) == refused
    assert capsys.readouterr().err == warned


@pytest.mark.parametrize(
    ("count", "granted", "force", "measures"),
    [(0, None, False, False), (0, None, True, True), (1, None, False, True), (1, 0, False, False)],
)
def test_a_cell_too_large_for_memory_is_skipped_unless_forced_or_on_a_gpu(
    monkeypatch, gpus, count, granted, force, measures
):
    gpus(count)
    monkeypatch.setattr(run, "too_large", lambda *_: "takes 34 GB, this machine has 16 GB")
    monkeypatch.setattr(run.freshness, "code_facts", lambda *_, measured: {"modules": {}, "measured": measured})
    cell = cell_with({"takes_fewer_gpus": True})
    measured = record_of(lambda *_: [ROW], cell=cell, granted=granted, force=force)
    # The code that computes the needed memory counts only if nothing was measured.
    assert measured["code"]["measured"] == measures
    reasons = {each.get("reason") for each in measured["rows"]}
    assert reasons == ({None} if measures else {"takes 34 GB, this machine has 16 GB"})


def test_bugs_and_rows_that_violate_their_declaration_raise():
    for error in (RuntimeError("shapes differ"), KeyError("size")):
        with pytest.raises(type(error)):
            record_of(Mock(side_effect=error))
    with pytest.raises(ValueError, match="row 1: unknown column 'median_ms': must be one of phase, status, reason"):
        record_of(lambda *_: [{**ROW, "median_ms": 1.0}])


def test_a_record_describes_process_start_job_and_host_load(gpus, monkeypatch):
    gpus(0)
    monkeypatch.setattr(run, "slurm_job", lambda: SlurmJob("7", "n[1-2]", 2))
    record = record_of(lambda *_: [ROW], cell=Cell(gpus=4), granted=0)
    assert record["rows"] == [ROW]  # without any GPU a cell runs on the CPU
    assert (record["process"], record["command"]) == ("ordinary", START.command)
    assert record["scheduler"] == {"name": "slurm", "job": "7", "nodes": "n[1-2]"}
    assert record["seconds"]["start_up"] > 1e9  # issued in 1970
    assert {"waiting", "set_up", "measuring"} < set(record["seconds"])
    assert set(record["host"]) == {"cores", "others_cores", "busy", "load_before", "load_after"}
    assert (record["host"]["cores"], record["host"]["busy"]) == (len(os.sched_getaffinity(0)), False)
    # No time is negative, even if the clock is set back.
    later = run.ProcessStart("ordinary", time.time() + 3600, START.command)
    assert min(record_of(lambda *_: [], start=later)["seconds"].values()) >= 0


def test_variables_that_a_package_sets_on_import_are_not_recorded(monkeypatch):
    # As scikit-learn does, which Transformers imports: such a record would be stale forever.
    monkeypatch.setattr(run.freshness, "code_facts", lambda _package, _at, environment, **_: dict(environment))
    monkeypatch.setenv("KMP_BLOCKTIME", "200")
    code = record_of(lambda *_: os.environ.update(KMP_INIT_AT_FORK="FALSE") or [ROW])["code"]
    assert "KMP_INIT_AT_FORK" not in code
    assert code["KMP_BLOCKTIME"] == "200"


@pytest.mark.parametrize("num_threads", [0, 1])
def test_threads_come_from_settings_not_from_snakemakes_variables(monkeypatch, num_threads):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seen, cores = [], num_threads or len(os.sched_getaffinity(0))
    measure = lambda *_: seen.append((torch.get_num_threads(), len(os.sched_getaffinity(0)))) or []  # noqa: E731
    record = record_of(measure, settings=Settings(threads=num_threads))
    assert seen == [(cores, cores)]
    assert record["machine"]["threads"] == cores
    assert os.environ["OMP_NUM_THREADS"] == str(cores)


def test_a_cell_sharing_the_host_uses_its_gpus_cores_with_a_thread_each(gpus, monkeypatch):
    gpus(2, "GPU-1")
    cores = sorted(os.sched_getaffinity(0))
    on_host = [Gpu(id=f"GPU-{index}", index=index, name="H100", memory_bytes=None) for index in range(2)]
    monkeypatch.setattr(run.own_cores, "gpus_on_host", lambda: on_host)
    monkeypatch.setattr(run.own_cores, "MIN_CORES_PER_GPU", len(cores) // 2)
    monkeypatch.setattr(run.own_cores, "sort_by_physical_core", lambda given, *_: sorted(given))
    seen = []
    record = record_of(lambda *_: seen.append((os.sched_getaffinity(0), torch.get_num_threads())) or [])
    half = len(cores) // 2
    assert seen == [(set(cores[half : 2 * half]), half)]
    assert (record["host"]["cores"], record["machine"]["cores"]) == (half, len(cores))


def test_waiting_time_is_neither_start_up_nor_measuring(monkeypatch):
    monkeypatch.setattr(quiet_host.locks, "wait_for", lambda attempt, _announcement: (attempt(), 1e9))
    monkeypatch.setattr(run, "claim_gpus", lambda *_: Claim((), waited_s=5e8))
    start = run.ProcessStart("ordinary", time.time() - 1.65e9, START.command, waited_s=5e7)
    seconds = record_of(lambda *_: [], start=start)["seconds"]
    assert seconds["waiting"] == 1.55e9
    assert 1e8 <= seconds["start_up"] < 1e8 + 1e3
    assert seconds["set_up"] + seconds["measuring"] < 1e3


def cell_with(attributes, gpus=1):
    """Return a cell whose class declares these attributes too."""
    return type("CellThatSays", (Cell,), attributes)(gpus)


@pytest.mark.parametrize(
    ("cell", "present", "granted", "alone", "num_taken"),
    [
        (Cell(), 0, None, True, 0),
        (Cell(), 1, None, False, 1),
        *((cell_with({"shares_host": False}), count, None, True, count) for count in (0, 1)),
        (cell_with({"takes_fewer_gpus": True}, gpus=8), 8, 2, False, 2),
        (Cell(gpus=4), 2, None, False, None),  # is skipped
        (Cell(gpus=4), 8, 2, False, None),
    ],
)
def test_a_cell_is_alone_unless_it_may_share_the_host_or_lacks_gpus(
    monkeypatch, gpus, cell, present, granted, alone, num_taken
):
    gpus(present)
    host = Mock(return_value=quiet_host.Host(False, START.command))
    monkeypatch.setattr(run, "Host", host)
    monkeypatch.setattr(run.own_cores, "each_gpu_has_own_cores", lambda: True)
    monkeypatch.setattr(run.own_cores, "cores_per_gpu", lambda: 1)
    monkeypatch.setattr(run.own_cores, "pin_to_cores_of", lambda _ids, at_most: {0})
    record = record_of(lambda *_: [], cell=cell, granted=granted)
    host.assert_called_once_with(alone=alone, command=START.command)
    skipped = {(row["status"], row["reason"]) for row in record["rows"]}
    assert skipped == ({("skipped", "needs 4 GPUs, 2 present")} if num_taken is None else set())
    assert len(record["machine"]["gpus_taken"]) == (num_taken or 0)


def test_a_cell_takes_the_host_before_imports_and_gpus_and_measures_last(monkeypatch):
    order = []
    monkeypatch.setattr(quiet_host.Host, "settle", lambda _host: order.append("settle"))
    monkeypatch.setattr(quiet_host.locks, "sign", lambda *_: order.append("take"))
    monkeypatch.setattr(run, "claim_gpus", lambda *_: order.append("claim") or Claim(()))
    monkeypatch.setattr(run, "slurm_job", lambda: order.append("ask"))
    waiting = stage(None)
    waiting.measure_function = lambda: order.append("import") or (lambda *_: order.append("measure") or [])
    run.run_cell(waiting, Cell(), Settings(), None, START)
    assert order == ["take", "import", "ask", "claim", "settle", "measure"]
