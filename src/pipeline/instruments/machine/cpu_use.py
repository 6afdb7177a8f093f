"""Measure how much CPU others use: of this process's cgroup if that is limited, else of given cores."""

import contextlib
import os
import resource
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil

from pipeline.instruments.machine.cgroups import cpu_limit

STATISTICS = Path("/proc/stat")
# Columns of /proc/stat after a core's name that count as work on this machine: not idle, iowait or steal, and not
# guest, which user already includes.
WORKING = (0, 1, 2, 5, 6)


@dataclass(frozen=True)
class CpuUse:
    """CPU seconds used so far on this many cores: by all processes, and by this one, its children and ancestors."""

    at_s: float
    all_s: float
    own_s: float
    cores: float

    def others_cores(self, earlier: "CpuUse") -> float:
        """Return how many cores all other processes kept busy, on average, since an earlier moment."""
        others_s = (self.all_s - earlier.all_s) - (self.own_s - earlier.own_s)
        return max(0.0, others_s / (self.at_s - earlier.at_s))


def cpu_use(core_ids: Collection[int]) -> CpuUse | None:
    """Read the counters of these cores, or of the cgroup if it allows fewer; None if they cannot be read."""
    try:
        # In a container /proc/stat covers the whole host, whose other work takes nothing from the container's limit.
        limit = cpu_limit(len(core_ids))
        all_s, cores = (limit.used_s(), limit.cores) if limit else (_of_cores(core_ids), len(core_ids))
    except (OSError, ValueError, LookupError):  # hidden by a container, or not Linux
        return None
    return CpuUse(perf_counter(), all_s, _own_s(), cores)


def _of_cores(core_ids: Collection[int]) -> float:
    names = {f"cpu{core}" for core in core_ids}
    lines = [line.split() for line in STATISTICS.read_text(encoding="utf-8").splitlines()]
    ticks = [int(line[1:][column]) for line in lines if line[0] in names for column in WORKING]
    return sum(ticks) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the CPU seconds of this process, its ended children and its ancestors."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own_s = sum(one.ru_utime + one.ru_stime for one in used)
    for ancestor in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            times = ancestor.cpu_times()
            own_s += times.user + times.system
    return own_s


def lost_cpu_s() -> dict[str, float]:
    """Return the CPU seconds lost so far; a kind of loss that cannot be read is left out.

    cpu_stolen: taken by other guests of a virtual machine's host, over all cores; cpu_throttled: withheld by a
    container's limit.
    """
    lost_s = {}
    # Containers may hide either place.
    with contextlib.suppress(OSError, AttributeError):  # only Linux reports stolen time
        lost_s["cpu_stolen"] = psutil.cpu_times().steal
    with contextlib.suppress(OSError, LookupError, AttributeError):
        if limit := cpu_limit(len(os.sched_getaffinity(0))):
            lost_s["cpu_throttled"] = limit.throttled_s()
    return lost_s
