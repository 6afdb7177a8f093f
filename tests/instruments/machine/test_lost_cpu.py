from types import SimpleNamespace

import pytest

from pipeline.instruments.machine import cgroups, lost_cpu
from pipeline.instruments.sampling.stopwatch import Stopwatch


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Give a machine's times, to be changed; it has no cgroup until the file is written."""
    found = SimpleNamespace(times=SimpleNamespace(steal=100.0), statistics=tmp_path / "cpu.stat")
    monkeypatch.setattr(lost_cpu.psutil, "cpu_times", lambda: found.times)
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path)
    monkeypatch.setattr(cgroups, "OWN_CGROUPS", tmp_path / "own")
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    return found


def test_what_is_lost_while_measuring_is_in_the_seconds_and_what_is_lost_before_is_not(machine):
    stopwatch = Stopwatch()
    for stolen_s in (1.5, 2.0):
        machine.times.steal += 40
        machine.statistics.write_text("usage_usec 9\nnr_throttled 3\nthrottled_usec 500000\n")
        with stopwatch.measuring():
            machine.times.steal += stolen_s
            machine.statistics.write_text("usage_usec 9\nnr_throttled 4\nthrottled_usec 750000\n")
    seconds = stopwatch.seconds()
    assert (seconds["cpu_stolen"], seconds["cpu_throttled"]) == (3.5, 0.5)


def test_what_nothing_tells_is_left_out(machine):
    assert lost_cpu.lost_cpu_s() == {"cpu_stolen": 100.0}
    machine.statistics.write_text("usage_usec 9\n")  # no limit
    machine.times = SimpleNamespace()
    assert lost_cpu.lost_cpu_s() == {}


def test_a_container_that_hides_both_places_does_not_stop_a_measurement(machine, monkeypatch):
    def hidden():
        raise PermissionError("/proc/stat")

    monkeypatch.setattr(lost_cpu.psutil, "cpu_times", hidden)
    machine.statistics.mkdir()
    stopwatch = Stopwatch()
    with stopwatch.measuring():
        pass
    assert set(stopwatch.seconds()) == {"set_up", "measuring"}
