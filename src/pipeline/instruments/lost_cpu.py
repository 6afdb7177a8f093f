"""CPU time lost to others: taken by other guests of a virtual machine's host, or cut off by a container's limit."""

from pathlib import Path

import psutil

# Of cgroup v2: in a container its own, which has the limit's figures where there is a limit.
CGROUP_STATISTICS = Path("/sys/fs/cgroup/cpu.stat")


def lost_cpu_s() -> dict[str, float]:
    """Return the seconds lost so far: cpu_stolen, over all cores, and cpu_throttled; without what nothing tells."""
    lost_s = {}
    times = psutil.cpu_times()
    if hasattr(times, "steal"):  # Linux only
        lost_s["cpu_stolen"] = times.steal
    if CGROUP_STATISTICS.exists():
        statistics = dict(line.split() for line in CGROUP_STATISTICS.read_text().splitlines())
        if "throttled_usec" in statistics:
            lost_s["cpu_throttled"] = int(statistics["throttled_usec"]) / 1e6
    return lost_s
