"""CPU time lost to others: taken by other guests of a virtual machine's host, or cut off by a container's limit."""

import os
from contextlib import suppress

import psutil

from pipeline.instruments.machine.cgroups import cpu_limit


def lost_cpu_s() -> dict[str, float]:
    """Return the seconds lost so far: cpu_stolen, over all cores, and cpu_throttled; without what nothing tells."""
    lost_s = {}
    # Containers may hide either place.
    with suppress(OSError, AttributeError):  # only Linux knows of stolen time
        lost_s["cpu_stolen"] = psutil.cpu_times().steal
    with suppress(OSError, LookupError, AttributeError):
        if limit := cpu_limit(len(os.sched_getaffinity(0))):
            lost_s["cpu_throttled"] = limit.throttled_s()
    return lost_s
