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
    return SimpleNamespace(**named, measure=lambda: measure, needed_bytes=lambda *_: 0)


@pytest.fixture(autouse=True)
def same_process_afterwards(monkeypatch, own_locks):
    """Cells pin threads and take devices and the host for the life of their process, here that of all tests."""
    affinity, threads, environment = os.sched_getaffinity(0), torch.get_num_threads(), dict(os.environ)
    monkeypatch.setattr(run.freshness, "code_facts", lambda *_, **__: {"digest": "digest", "modules": {}})
    yield
    os.sched_setaffinity(0, affinity)
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def gpus(monkeypatch):
    def present(count, *taken):
        monkeypatch.setattr(run.identity, "gpu_count", lambda: count)
        monkeypatch.setattr(run, "claim_gpus", lambda asked, _command: Claim(taken or ("0",) * asked))

    return present


def record_of(measure, cell=Cell(), settings=Settings(), granted=None, start=START, **words):
    return run.run_cell(stage(measure), cell, settings, granted, start, **words)


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (Skipped("no CUDA"), "skipped", "no CUDA"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried 2 GiB\nmore"), "oom", "CUDA out of memory. Tried 2 GiB"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom", "DefaultCPUAllocator"),
    ],
)
def test_an_outcome_becomes_a_row_for_each_of_the_cells_rows(error, status, reason):
    rows = record_of(Mock(side_effect=error))["rows"]
    assert [(row["phase"], row["status"]) for row in rows] == [("forward", status), ("backward", status)]
    assert all(row["reason"].startswith(reason) and "\n" not in row["reason"] for row in rows)


@pytest.mark.parametrize(
    ("needed_gb", "refused", "warned"),
    [
        (33.6, "takes 33.6 GB of memory or more, this machine has 16.0 GB; `measure --force` tries it", ""),
        (12, "None", "takes 12.0 GB of memory or more, of which 9.0 GB are free: it may be killed\n"),
        *((needed_gb, "None", "") for needed_gb in (8, 0)),
    ],
)
def test_what_this_machine_cannot_hold_is_refused_and_what_is_not_free_now_measured_with_a_warning(
    monkeypatch, capsys, needed_gb, refused, warned
):
    monkeypatch.setattr(run, "memory_limit_bytes", lambda: 16e9)
    monkeypatch.setattr(run.psutil, "virtual_memory", lambda: SimpleNamespace(available=9e9))
    assert str(run.too_large(SimpleNamespace(needed_bytes=lambda *_: needed_gb * 1e9), None, None)) == refused
    assert capsys.readouterr().err == warned


@pytest.mark.parametrize(("count", "force", "measures"), [(0, False, False), (0, True, True), (1, False, True)])
def test_a_cell_that_the_host_s_memory_cannot_hold_is_skipped_unless_by_force_or_on_a_gpu(
    monkeypatch, gpus, count, force, measures
):
    gpus(count)
    monkeypatch.setattr(run, "too_large", lambda *_: Skipped("takes 34 GB, this machine has 16 GB"))
    monkeypatch.setattr(run.freshness, "code_facts", lambda *_, measured: {"modules": {}, "measured": measured})
    measured = record_of(lambda *_: [ROW], force=force)
    # The code that told its memory counts only where nothing was measured.
    assert measured["code"]["measured"] == measures
    reasons = {each.get("reason") for each in measured["rows"]}
    assert reasons == ({None} if measures else {"takes 34 GB, this machine has 16 GB"})


def test_a_bug_is_no_outcome_nor_are_rows_that_are_not_as_their_stage_declares_them():
    for error in (RuntimeError("shapes differ"), KeyError("size")):
        with pytest.raises(type(error)):
            record_of(Mock(side_effect=error))
    with pytest.raises(ValueError, match="row 1: unknown column 'median_ms': must be one of phase, status, reason"):
        record_of(lambda *_: [{**ROW, "median_ms": 1.0}])


def test_a_record_says_how_and_when_its_process_was_started_in_which_job_and_how_busy_the_host_was(gpus, monkeypatch):
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
    # A clock that is set back gives no negative time.
    later = run.ProcessStart("ordinary", time.time() + 3600, START.command)
    assert min(record_of(lambda *_: [], start=later)["seconds"].values()) >= 0


def test_a_variable_that_a_package_sets_as_it_is_imported_does_not_stand_in_the_record(monkeypatch):
    # As scikit-learn does, which Transformers imports: such a record would be stale for ever.
    monkeypatch.setattr(run.freshness, "code_facts", lambda _package, _at, environment, **_: dict(environment))
    monkeypatch.setenv("KMP_BLOCKTIME", "200")
    told = record_of(lambda *_: os.environ.update(KMP_INIT_AT_FORK="FALSE") or [ROW])["code"]
    assert "KMP_INIT_AT_FORK" not in told
    assert told["KMP_BLOCKTIME"] == "200"


@pytest.mark.parametrize("asked", [0, 1])
def test_a_cell_has_the_threads_that_its_settings_name_or_all_whatever_snakemakes_variables_say(monkeypatch, asked):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    seen, cores = [], asked or len(os.sched_getaffinity(0))
    measure = lambda *_: seen.append((torch.get_num_threads(), len(os.sched_getaffinity(0)))) or []  # noqa: E731
    record = record_of(measure, settings=Settings(threads=asked))
    assert seen == [(cores, cores)]
    assert record["machine"]["threads"] == cores
    assert os.environ["OMP_NUM_THREADS"] == str(cores)


def test_a_cell_that_shares_the_host_runs_on_the_cores_of_its_gpu_with_as_many_threads(gpus, monkeypatch):
    gpus(2, "GPU-1")
    cores = sorted(os.sched_getaffinity(0))
    on_host = [Gpu(id=f"GPU-{index}", index=index, name="H100", memory_bytes=None) for index in range(2)]
    monkeypatch.setattr(run.own_cores, "gpus_on_host", lambda: on_host)
    monkeypatch.setattr(run.own_cores, "MIN_CORES_PER_GPU", len(cores) // 2)
    monkeypatch.setattr(run.own_cores, "by_physical_core", lambda given, *_: sorted(given))
    seen = []
    record = record_of(lambda *_: seen.append((os.sched_getaffinity(0), torch.get_num_threads())) or [])
    half = len(cores) // 2
    assert seen == [(set(cores[half : 2 * half]), half)]
    assert (record["host"]["cores"], record["machine"]["cores"]) == (half, len(cores))


def test_the_time_waited_for_the_host_for_gpus_and_for_the_worker_is_neither_start_up_nor_measuring(monkeypatch):
    monkeypatch.setattr(quiet_host.locks, "wait_for", lambda attempt, _announcement: (attempt(), 1e9))
    monkeypatch.setattr(run, "claim_gpus", lambda *_: Claim((), waited_s=5e8))
    start = run.ProcessStart("ordinary", time.time() - 1.65e9, START.command, waited_s=5e7)
    seconds = record_of(lambda *_: [], start=start)["seconds"]
    assert seconds["waiting"] == 1.55e9
    assert 1e8 <= seconds["start_up"] < 1e8 + 1e3
    assert seconds["set_up"] + seconds["measuring"] < 1e3


def cell_that(says, gpus=1):
    """Return a cell of another kind, which says one more thing of itself."""
    return type("CellThatSays", (Cell,), says)(gpus)


@pytest.mark.parametrize(
    ("cell", "present", "granted", "alone", "taken"),
    [
        (Cell(), 0, None, True, 0),
        (Cell(), 1, None, False, 1),
        *((cell_that({"shares_host": False}), count, None, True, count) for count in (0, 1)),
        (cell_that({"takes_fewer_gpus": True}, gpus=8), 8, 2, False, 2),
        (Cell(gpus=4), 2, None, False, None),  # is skipped
        (Cell(gpus=4), 8, 2, False, None),
    ],
)
def test_a_cell_is_alone_unless_it_may_share_the_host_or_has_too_few_gpus_which_is_told(
    monkeypatch, gpus, cell, present, granted, alone, taken
):
    gpus(present)
    host = Mock(return_value=quiet_host.Host(False, START.command))
    monkeypatch.setattr(run, "Host", host)
    monkeypatch.setattr(run.own_cores, "each_gpu_has_its_own", lambda: True)
    monkeypatch.setattr(run.own_cores, "per_gpu", lambda: 1)
    monkeypatch.setattr(run.own_cores, "keep_to_those_of", lambda _ids, at_most: {0})
    record = record_of(lambda *_: [], cell=cell, granted=granted)
    host.assert_called_once_with(alone=alone, command=START.command)
    lacking = {(row["status"], row["reason"]) for row in record["rows"]}
    assert lacking == ({("skipped", "needs 4 GPUs, 2 present")} if taken is None else set())
    assert len(record["machine"]["gpus_taken"]) == (taken or 0)


def test_the_host_is_taken_before_anything_is_imported_or_claimed_and_what_may_fail_comes_before_measuring(monkeypatch):
    order = []
    monkeypatch.setattr(quiet_host.Host, "settle", lambda _host: order.append("settle"))
    monkeypatch.setattr(quiet_host.locks, "sign", lambda *_: order.append("take"))
    monkeypatch.setattr(run, "claim_gpus", lambda *_: order.append("claim") or Claim(()))
    monkeypatch.setattr(run, "slurm_job", lambda: order.append("ask"))
    waiting = stage(None)
    waiting.measure = lambda: order.append("import") or (lambda *_: order.append("measure") or [])
    run.run_cell(waiting, Cell(), Settings(), None, START)
    assert order == ["take", "import", "ask", "claim", "settle", "measure"]
