import os
import time
from functools import partial
from types import SimpleNamespace

import pytest

from pipeline.cells import quiet_host
from pipeline.cells.quiet_host import Host
from pipeline.instruments.machine.cpu_use import CpuUse

from ..complaints import complaint

CELL = """
import sys, time
from pipeline.cells import locks, quiet_host
locks.QUIET_S, locks.POLL_S = 0.1, (0.02, 0.05)
host = quiet_host.Host(alone="alone" in sys.argv, command="measure " + sys.argv[1])
print("began", time.monotonic(), host.waited_s, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def own_run(monkeypatch, own_locks):
    monkeypatch.delenv(quiet_host.RUN_VARIABLE, raising=False)


@pytest.fixture
def start(start_python):
    return partial(start_python, CELL)


def began(process):
    """Return when a cell began, and how long it had waited."""
    return tuple(map(float, process.stdout.readline().split()[1:]))


def test_a_lone_cell_waits_for_sharers_says_so_once_and_goes_before_later_ones(start):
    sharers = [start(f"sharer{number}", "shared") for number in range(2)]
    assert all(began(sharer) for sharer in sharers)
    lone = start("lone", "alone")
    assert lone.stderr.readline().startswith("waiting for other cells on this host; last started: process ")
    # A later cell queues behind it; otherwise cells that share the host could keep it waiting forever.
    late = start("late", "shared")
    assert "waiting for other cells" in late.stderr.readline()
    for sharer in sharers:
        sharer.kill()
    killed_at_s = time.monotonic()
    lone_began_s, waited_s = began(lone)
    assert lone_began_s > killed_at_s - 0.01
    assert waited_s > 0.1
    lone.kill()
    assert began(late)[0] > lone_began_s
    assert lone.communicate(timeout=20)[1] == ""


@pytest.fixture
def others(monkeypatch):
    """Return a function that fakes how many of 4 cores others use per sample (the last repeats), returning a clock."""
    monkeypatch.delenv(quiet_host.CHECK_VARIABLE)
    clock = {"s": 1000.0, "all_s": 0.0}

    def play(*cores):
        remaining = list(cores)

        def sleep(seconds):
            clock["s"] += seconds
            clock["all_s"] += seconds * (remaining.pop(0) if len(remaining) > 1 else remaining[0])

        def use(core_ids):
            assert core_ids == os.sched_getaffinity(0)
            return CpuUse(clock["s"], clock["all_s"], 0.0, 4)

        now = lambda: clock["s"]  # noqa: E731
        monkeypatch.setattr(quiet_host, "cpu_use", use)
        monkeypatch.setattr(quiet_host, "time", SimpleNamespace(sleep=sleep, monotonic=now, perf_counter=now))
        return clock

    return play


def settled_host(alone=True):
    host = Host(alone, "measure something")
    host.settle()
    return host


def test_a_quiet_host_costs_at_most_one_sample_and_prints_nothing(others, capsys):
    clock = others(2.0)
    host = settled_host()
    assert clock["s"] - 1000 == quiet_host.SAMPLE_S
    assert (host.others_cores, host.is_busy, host.waited_s) == (2.0, False, 0)
    host = Host(True, "measure something")
    quiet_host.time.sleep(0.6)
    host.settle()
    assert clock["s"] - 1000 == pytest.approx(quiet_host.SAMPLE_S + 0.6)
    assert capsys.readouterr().err == ""


def test_a_cell_waits_until_a_busy_host_is_quiet(others, capsys):
    others(3.0, 2.5, 4.0, 0.5)
    host = settled_host()
    assert (host.others_cores, host.is_busy, host.waited_s) == (0.5, False, 3 * quiet_host.SAMPLE_S)
    assert capsys.readouterr().err == "other processes use 3.0 of 4 cores: waiting up to 60 s for them\n"


def test_a_host_that_stays_busy_is_used_after_a_minute_and_reported(others, capsys):
    others(2.1)
    host = settled_host()
    assert host.waited_s == pytest.approx(60, abs=1)
    facts = host.facts()
    assert (facts["cores"], facts["others_cores"], facts["busy"]) == (4, pytest.approx(2.1), True)
    message = "measured on a busy host: other processes use 2.1 of 4 cores"
    assert capsys.readouterr().err.splitlines()[1:] == [message]


def test_the_cells_of_a_run_together_wait_for_a_minute(others, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv(quiet_host.RUN_VARIABLE, str(tmp_path / "run1"))
    others(3.0, 3.0, 0.0, 3.0)  # quiet after two samples, then busy for good
    assert [settled_host().waited_s for _cell in range(3)] == [2 * quiet_host.SAMPLE_S, 60 - 2 * quiet_host.SAMPLE_S, 0]
    assert ": waiting up to 60 s for them\n" in capsys.readouterr().err
    # If the folder is missing, the wait cannot be recorded, so no cell waits.
    for run, waited_s in (("run2", 60), ("gone/run3", 0)):
        monkeypatch.setenv(quiet_host.RUN_VARIABLE, str(tmp_path / run))
        host = settled_host()
        assert (host.waited_s, host.is_busy) == (waited_s, True)


@pytest.mark.parametrize("why", ["shared", "turned off", "no counters"])
def test_a_host_that_is_shared_unchecked_or_without_counters_is_not_sampled(others, monkeypatch, why):
    clock = others(3.0)
    if why == "turned off":
        monkeypatch.setenv(quiet_host.CHECK_VARIABLE, "off")
    if why == "no counters":
        monkeypatch.setattr(quiet_host, "cpu_use", lambda _core_ids: None)
    loads = iter([(0.5, 9, 9), (1.5, 9, 9)])
    monkeypatch.setattr(os, "getloadavg", lambda: next(loads))
    facts = settled_host(alone=why != "shared").facts()
    assert clock["s"] == 1000
    assert (facts["others_cores"], facts["busy"]) == (None, False)
    assert (facts["load_before"], facts["load_after"]) == (0.5, 1.5)


def test_an_unknown_value_of_the_check_variable_is_refused(monkeypatch):
    monkeypatch.setenv(quiet_host.CHECK_VARIABLE, "no")
    assert complaint(settled_host) == "PIPELINE_HOST_CHECK must be off or unset, got 'no'"
