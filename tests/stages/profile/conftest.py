"""Traces of a simulated GPU, and settings for quick cells."""

from contextlib import ExitStack, contextmanager

import pandas as pd

from pipeline.instruments.profilers.trace import build_trace
from pipeline.stages.profile.cell import Settings

LAUNCH_US = 5.0
QUICK = Settings(warmup_steps=1, steps=10, max_steps=10, budget_s=0.0, captured_rounds=2)
COLUMNS = {
    "work": ["name", "stream", "start_us", "duration_us", "correlation"],
    "launches": ["correlation", "launch_us", "thread"],
    "ranges": ["name", "thread", "start_us", "duration_us"],
}


def trace_of(work, launches, ranges):
    given = zip((work, launches, ranges), COLUMNS.values(), strict=True)
    return build_trace(*(pd.DataFrame(rows, columns=columns) for rows, columns in given), "nsys")


class Simulator:
    """A host that launches every 5 us and never waits, and a device that runs kernels in order."""

    def __init__(self):
        self.host_us = self.device_us = 0.0
        self.work, self.launches, self.ranges = [], [], []

    @contextmanager
    def range(self, name):
        start_us = self.host_us
        self.host_us += 1 / 8  # so that none starts at the same time as the one around it
        yield
        self.ranges.append((name, 1, start_us, self.host_us - start_us))

    def kernel(self, path, name, duration_us):
        """Run a kernel in nested ranges, named by the path."""
        with ExitStack() as stack:
            for part in filter(None, path.split("/")):
                stack.enter_context(self.range(part))
            self.launches.append((len(self.launches), self.host_us, 1))
            self.host_us += LAUNCH_US
            start_us = max(self.host_us, self.device_us)
            self.work.append((name, 7, start_us, duration_us, len(self.work)))
            self.device_us = start_us + duration_us

    def trace(self):
        return trace_of(self.work, self.launches, self.ranges)
