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


def test_cells_share_the_host_beside_none_that_is_alone_which_says_once_for_whom_it_waits_and_has_its_turn(start):
    sharers = [start(f"sharer{number}", "shared") for number in range(2)]
    assert all(began(sharer) for sharer in sharers)
    lone = start("lone", "alone")
    assert lone.stderr.readline().startswith("waiting for the host, last taken by process ")
    # One that comes later stands behind it: else cells that share could keep it waiting for ever.
    late = start("late", "shared")
    assert "waiting for the host" in late.stderr.readline()
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
    """Have other processes use so many of four cores in each sample, the last for good; count the seconds slept."""
    monkeypatch.delenv(quiet_host.CHECK_VARIABLE)
    clock = {"s": 1000.0, "all_s": 0.0}

    def play(*cores):
        coming = list(cores)

        def sleep(seconds):
            clock["s"] += seconds
            clock["all_s"] += seconds * (coming.pop(0) if len(coming) > 1 else coming[0])

        def use(core_ids):
            assert core_ids == os.sched_getaffinity(0)
            return CpuUse(clock["s"], clock["all_s"], 0.0, 4)

        now = lambda: clock["s"]  # noqa: E731
        monkeypatch.setattr(quiet_host, "cpu_use", use)
        monkeypatch.setattr(quiet_host, "time", SimpleNamespace(sleep=sleep, monotonic=now, perf_counter=now))
        return clock

    return play


def settled(alone=True):
    host = Host(alone, "measure something")
    host.settle()
    return host


def test_a_quiet_host_costs_one_sample_less_what_set_up_took_and_no_word(others, capsys):
    clock = others(2.0)
    host = settled()
    assert clock["s"] - 1000 == quiet_host.SAMPLE_S
    assert (host.others_cores, host.is_busy, host.waited_s) == (2.0, False, 0)
    host = Host(True, "measure something")
    quiet_host.time.sleep(0.6)
    host.settle()
    assert clock["s"] - 1000 == pytest.approx(quiet_host.SAMPLE_S + 0.6)
    assert capsys.readouterr().err == ""


def test_a_busy_host_is_waited_for_until_it_is_quiet(others, capsys):
    others(3.0, 2.5, 4.0, 0.5)
    host = settled()
    assert (host.others_cores, host.is_busy, host.waited_s) == (0.5, False, 3 * quiet_host.SAMPLE_S)
    assert capsys.readouterr().err == "other processes use 3.0 of 4 cores: waiting up to 60 s, once a run\n"


def test_a_host_that_stays_busy_is_measured_on_after_a_minute_and_told(others, capsys):
    others(2.1)
    host = settled()
    assert host.waited_s == pytest.approx(60, abs=1)
    facts = host.facts()
    assert (facts["cores"], facts["others_cores"], facts["busy"]) == (4, pytest.approx(2.1), True)
    told = "measured on a busy host: other processes use 2.1 of 4 cores"
    assert capsys.readouterr().err.splitlines()[1:] == [told]


def test_a_run_waits_once(others, monkeypatch, tmp_path):
    others(3.0)
    # In a folder that is gone nothing can be noted.
    for run, waits in (("run1", True), ("run1", False), ("run2", True), ("gone/run3", False)):
        monkeypatch.setenv(quiet_host.RUN_VARIABLE, str(tmp_path / run))
        host = settled()
        assert (host.waited_s > 0, host.is_busy) == (waits, True)


@pytest.mark.parametrize("why", ["shared", "turned off", "no counters"])
def test_where_nothing_can_or_need_be_told_no_sample_is_taken(others, monkeypatch, why):
    clock = others(3.0)
    if why == "turned off":
        monkeypatch.setenv(quiet_host.CHECK_VARIABLE, "off")
    if why == "no counters":
        monkeypatch.setattr(quiet_host, "cpu_use", lambda _core_ids: None)
    loads = iter([(0.5, 9, 9), (1.5, 9, 9)])
    monkeypatch.setattr(os, "getloadavg", lambda: next(loads))
    facts = settled(alone=why != "shared").facts()
    assert clock["s"] == 1000
    assert (facts["others_cores"], facts["busy"]) == (None, False)
    assert (facts["load_before"], facts["load_after"]) == (0.5, 1.5)


def test_another_wish_for_the_check_is_refused(monkeypatch):
    monkeypatch.setenv(quiet_host.CHECK_VARIABLE, "no")
    assert complaint(settled) == "PIPELINE_HOST_CHECK must be off or left unset, got 'no'"
