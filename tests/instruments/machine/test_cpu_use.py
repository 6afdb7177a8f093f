import os
import subprocess
import sys
import time

import pytest

from pipeline.instruments.machine import cgroups, cpu_use
from pipeline.instruments.machine.cpu_use import CpuUse

USER_HZ = os.sysconf("SC_CLK_TCK")
# Columns: user nice system idle iowait irq softirq steal guest guest_nice.
STATISTICS = """\
cpu  900 0 0 0 0 0 0 0 0 0
cpu0 {busy} 1 2 1000 1000 3 4 1000 1000 0
cpu1 300 0 0 0 0 0 0 0 0 0
cpu10 500 0 0 0 0 0 0 0 0 0
intr 5
"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Give a machine's files, to be written, and processes of one's own that do nothing."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "OWN_CGROUPS", tmp_path / "own")
    monkeypatch.setattr(cpu_use, "STATISTICS", tmp_path / "stat")
    monkeypatch.setattr(cpu_use, "_own_s", lambda: 0.0)
    (tmp_path / "cgroup/pod/container").mkdir(parents=True)
    (tmp_path / "own").write_text("2:cpu:/old\n0::/pod/container\n")
    (tmp_path / "stat").write_text(STATISTICS.format(busy=90))
    return tmp_path


def limit(machine, cgroup, quota, used_s):
    folder = machine / "cgroup" / cgroup
    (folder / "cpu.max").write_text(f"{quota}\n")
    (folder / "cpu.stat").write_text(f"usage_usec {used_s * 1_000_000}\nnr_throttled 3\n")


def test_work_is_counted_on_the_cores_asked_for_and_waiting_and_stolen_time_are_none(machine):
    use = cpu_use.cpu_use({0, 10})
    assert use.all_s * USER_HZ == pytest.approx(90 + 1 + 2 + 3 + 4 + 500)
    assert use.cores == 2


@pytest.mark.parametrize("quota", ["max 100000", "400000 100000"])
def test_a_cgroup_that_allows_every_core_limits_nothing(machine, quota):
    limit(machine, "pod/container", quota, used_s=7)
    use = cpu_use.cpu_use({0, 10})
    assert use.cores == 2
    assert use.all_s != 7


def test_within_a_limit_its_cgroup_counts_and_not_the_host(machine):
    limit(machine, "pod", "150000 100000", used_s=7)
    limit(machine, "pod/container", "300000 100000", used_s=5)
    use = cpu_use.cpu_use({0, 1, 10, 11})
    assert (use.all_s, use.cores) == (7, 1.5)


def test_a_limit_of_a_cgroup_of_version_1_counts_too(machine):
    (machine / "own").write_text("3:cpuset:/\n2:cpu,cpuacct:/pod\n0::/pod\n")
    folder = machine / "cgroup/cpu/pod"
    folder.mkdir(parents=True)
    for name, content in {"cpu.cfs_quota_us": 50_000, "cpu.cfs_period_us": 100_000, "cpuacct.usage": 7e9}.items():
        (folder / name).write_text(f"{content:.0f}\n")
    (folder / "cpu.stat").write_text("nr_throttled 3\nthrottled_time 2000000000\n")
    use = cpu_use.cpu_use({0, 1})
    assert (use.all_s, use.cores) == (7, 0.5)
    assert cgroups.cpu_limit(2).throttled_s() == 2
    (folder / "cpu.cfs_quota_us").write_text("-1\n")
    assert cgroups.cpu_limit(2) is None


@pytest.mark.parametrize("hidden", ["own", "stat"])
def test_a_container_that_hides_the_counters_is_no_error(machine, hidden):
    (machine / hidden).unlink()
    assert cpu_use.cpu_use({0}) is None


@pytest.mark.parametrize(("own_s", "others"), [(2, 2), (7, 0)])
def test_others_are_all_but_this_process_and_never_less_than_none(own_s, others):
    begin = CpuUse(at_s=10, all_s=100, own_s=1, cores=4)
    assert CpuUse(at_s=12, all_s=105, own_s=own_s, cores=4).others_cores(begin) == others


SPIN = """
import time
until_s = time.process_time() + 0.15
while time.process_time() < until_s:
    pass
{tell}
"""
TELL = "from pipeline.instruments.machine.cpu_use import _own_s; print(_own_s())"


def test_what_this_process_its_ended_children_and_its_parents_use_is_its_own():
    before_s, spin = cpu_use._own_s(), SPIN.format(tell="")
    exec(spin, {})
    found = subprocess.run([sys.executable, "-c", SPIN.format(tell=TELL)], capture_output=True, text=True, check=True)
    assert cpu_use._own_s() - before_s > 0.25
    assert float(found.stdout) > time.process_time() - 0.05  # the parent's, to the kernel's clock tick
