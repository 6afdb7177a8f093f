"""CPU time lost to others: taken by other guests of a virtual machine's host, or cut off by a container's limit."""

from contextlib import suppress
from pathlib import Path

import psutil

# Of cgroup v2: in a container its own, which has the limit's figures where there is a limit.
CGROUP_STATISTICS = Path("/sys/fs/cgroup/cpu.stat")


def lost_cpu_s() -> dict[str, float]:
    """Return the seconds lost so far: cpu_stolen, over all cores, and cpu_throttled; without what nothing tells."""
    lost_s = {}
    # Containers may hide either place.
    with suppress(OSError, AttributeError):  # only Linux knows of stolen time
        lost_s["cpu_stolen"] = psutil.cpu_times().steal
    with suppress(OSError):
        for line in CGROUP_STATISTICS.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(" ")
            if name == "throttled_usec":
                lost_s["cpu_throttled"] = int(value) / 1e6
    return lost_s
