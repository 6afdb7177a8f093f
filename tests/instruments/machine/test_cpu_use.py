import os
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from pipeline.instruments.machine import cgroups, cpu_use
from pipeline.instruments.machine.cpu_use import CpuUse
from pipeline.instruments.sampling.stopwatch import Stopwatch

USER_HZ = os.sysconf("SC_CLK_TCK")
# Columns: user nice system idle iowait irq softirq steal guest guest_nice.
STATISTICS = """\
cpu  900 0 0 0 0 0 0 0 0 0
cpu0 90 1 2 1000 1000 3 4 1000 1000 0
cpu1 300 0 0 0 0 0 0 0 0 0
cpu10 500 0 0 0 0 0 0 0 0 0
intr 5
"""


@pytest.fixture
def busy(monkeypatch, tmp_path):
    """Provide fake counters of a machine's cores, and no CPU use by this process."""
    monkeypatch.setattr(cpu_use, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(cpu_use, "_own_s", lambda: 0.0)
    (tmp_path / "stat").write_text(STATISTICS)
    return tmp_path


POD = "2:cpu:/old\n0::/pod/container\n"


def limit(cgroup, quota, used_s):
    return {f"{cgroup}/cpu.max": quota, f"{cgroup}/cpu.stat": f"usage_usec {used_s * 1_000_000}\nnr_throttled 3"}


@pytest.mark.parametrize("quota", [None, "max 100000", "400000 100000"])
def test_use_is_counted_on_the_given_cores_unless_a_cgroup_allows_fewer(busy, write, quota):
    """Waiting and stolen time do not count."""
    write(POD, limit("pod/container", quota, used_s=7) if quota else {})
    use = cpu_use.cpu_use({0, 10})
    assert use.all_s * USER_HZ == pytest.approx(90 + 1 + 2 + 3 + 4 + 500)
    assert use.cores == 2


def test_under_a_cpu_limit_the_cgroup_is_counted_and_not_the_host(busy, write):
    write(POD, limit("pod", "150000 100000", used_s=7) | limit("pod/container", "300000 100000", used_s=5))
    use = cpu_use.cpu_use({0, 1, 10, 11})
    assert (use.all_s, use.cores) == (7, 1.5)


def test_a_limit_of_a_version_1_cgroup_counts_too(busy, write):
    files = {"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000, "cpuacct.usage": 7 * 10**9}
    files["cpu.stat"] = "nr_throttled 3\nthrottled_time 2000000000"
    write("3:cpuset:/\n2:cpu,cpuacct:/pod\n0::/pod\n", {f"cpu/pod/{name}": text for name, text in files.items()})
    use = cpu_use.cpu_use({0, 1})
    assert (use.all_s, use.cores) == (7, 0.5)
    assert cgroups.cpu_limit(2).throttled_s() == 2
    write(None, {"cpu/pod/cpu.cfs_quota_us": -1})
    assert cgroups.cpu_limit(2) is None


@pytest.mark.parametrize("hidden", ["own", "stat"])
def test_counters_hidden_by_a_container_are_not_an_error(busy, write, hidden):
    write(POD, {})
    (busy / hidden).unlink()
    assert cpu_use.cpu_use({0}) is None


def test_use_by_others_excludes_this_process_and_is_never_negative():
    begin, ends = CpuUse(10, 100, own_s=1, cores=4), [CpuUse(12, 105, own_s=own_s, cores=4) for own_s in (2, 7)]
    assert [end.others_cores(begin) for end in ends] == [2, 0]


SPIN = """
import time
until_s = time.process_time() + 0.15
while time.process_time() < until_s:
    pass
"""
TELL = "from pipeline.instruments.machine.cpu_use import _own_s; print(_own_s())"


def test_own_use_includes_ended_children_and_parents():
    before_s = cpu_use._own_s()
    exec(SPIN, {})
    found = subprocess.run([sys.executable, "-c", SPIN + TELL], capture_output=True, text=True, check=True)
    assert cpu_use._own_s() - before_s > 0.25
    assert float(found.stdout) > time.process_time() - 0.05  # includes the parent's, to within a clock tick


@pytest.fixture
def stolen(monkeypatch):
    times = SimpleNamespace(steal=100.0)
    monkeypatch.setattr(cpu_use.psutil, "cpu_times", lambda: times)
    return times


def test_only_cpu_time_lost_while_measuring_is_counted(stolen, write):
    counts = "usage_usec 9\nnr_throttled 3\nthrottled_usec "
    write("0::/\n", {"cpu.max": "50000 100000"})
    stopwatch = Stopwatch()
    for stolen_s in (1.5, 2.0):
        stolen.steal += 40
        write(None, {"cpu.stat": f"{counts}500000"})
        with stopwatch.measuring():
            stolen.steal += stolen_s
            write(None, {"cpu.stat": f"{counts}750000"})
    seconds = stopwatch.seconds()
    assert (seconds["cpu_stolen"], seconds["cpu_throttled"]) == (3.5, 0.5)


def test_lost_time_that_cannot_be_read_is_left_out_and_stops_no_measurement(stolen, write, monkeypatch):
    assert cpu_use.lost_cpu_s() == {"cpu_stolen": 100.0}
    write("0::/\n", {"cpu.max": "50000 100000", "cpu.stat": "usage_usec 9"})
    del stolen.steal
    assert cpu_use.lost_cpu_s() == {}
    monkeypatch.setattr(cpu_use.psutil, "cpu_times", Mock(side_effect=PermissionError("/proc/stat")))
    stopwatch = Stopwatch()
    with stopwatch.measuring():
        pass
    assert set(stopwatch.seconds()) == {"set_up", "measuring"}
