"""The trace format of all profilers: device work with the named ranges that launched it, and the times of both.

A kernel runs later than the call that launched it, so its own time does not tell which range it belongs to. It belongs
to the range that was open on the launching thread at the time of the launch: the correlation id leads from the kernel
to the launching call, whose thread and host time lead to the range.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.instruments.profilers.intervals import span_us, union_us
from pipeline.instruments.profilers.kernel_categories import category

# Device work, sorted by start.
EVENT_COLUMNS = (
    "name",  # full name of the kernel, copy or operator
    "category",  # the kind of work, see `pipeline.instruments.profilers.kernel_categories`
    "stream",  # the CUDA stream that it ran on; on a CPU the thread
    "start_us",  # by the device's clock, since the first event or range of the capture
    "duration_us",
    "calls",  # 1; an operator that calls others has a row per piece of its own time: 1 in the first, 0 in the rest
    "correlation",  # the id that it shares with the call that launched it, -1 if there is none
    "range_id",  # the row of the innermost range that launched it, -1 outside all ranges
    "path",  # that range and the ones around it, outermost first: "train_step/forward/attention/softmax"
)
# Named ranges of the host, sorted by start.
RANGE_COLUMNS = ("name", "thread", "start_us", "duration_us", "parent", "path")

NOWHERE = -1


@dataclass(frozen=True)
class Trace:
    """One capture: its events (EVENT_COLUMNS), its ranges (RANGE_COLUMNS), and which profiler made it."""

    events: pd.DataFrame
    ranges: pd.DataFrame
    profiler: str


@dataclass(frozen=True)
class Nesting:
    """How the intervals of one thread nest.

    `parents` has one entry per interval; between `moments[i]` and `moments[i + 1]` the innermost interval is
    `innermost[i]`. Intervals are given as row numbers of their table; NOWHERE stands for none.
    """

    rows: np.ndarray
    parents: np.ndarray
    moments: np.ndarray
    innermost: np.ndarray

    def at(self, times: np.ndarray) -> np.ndarray:
        """Return the innermost interval at each time."""
        # A time before the first moment, or NaN, finds the last entry, after which nothing is open any more.
        return self.innermost[np.searchsorted(self.moments, times, side="right") - 1]


def build_trace(work: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame, profiler: str) -> Trace:
    """Attribute device work to the ranges that launched it.

    Columns of work: name, stream, start_us, duration_us, correlation, and calls unless all are 1; of launches:
    correlation, launch_us, thread; of ranges: name, thread, start_us, duration_us. Work whose launch is not in the
    capture belongs to no range.
    """
    ranges = _nested(ranges)
    events = work.merge(launches.drop_duplicates("correlation"), on="correlation", how="left")
    events = events.sort_values("start_us", kind="stable", ignore_index=True)
    if "calls" not in events:
        events["calls"] = 1
    events["range_id"] = _launching_range(events, ranges)
    paths = np.append(ranges["path"].to_numpy(dtype=object), "")  # NOWHERE is -1 and finds the last
    events["path"] = paths[events["range_id"].to_numpy()]
    events["category"] = list(map(category, events["name"], events["path"]))
    origin_us = min((table["start_us"].min() for table in (events, ranges) if len(table)), default=0.0)
    events["start_us"] -= origin_us
    ranges["start_us"] -= origin_us
    return Trace(events[list(EVENT_COLUMNS)], ranges[list(RANGE_COLUMNS)], profiler)


def in_reading_order(intervals: pd.DataFrame) -> pd.DataFrame:
    """Sort intervals by start_us; of those that start together, the longest (the outer one) comes first."""
    return intervals.sort_values(["start_us", "duration_us"], ascending=[True, False], ignore_index=True)


def nestings(intervals: pd.DataFrame) -> Iterator[tuple[Any, Nesting]]:
    """Yield each thread with the nesting of its intervals, which must be in reading order."""
    starts = intervals["start_us"].to_numpy(dtype=float)
    ends = starts + intervals["duration_us"].to_numpy(dtype=float)
    for thread, rows in intervals.groupby("thread").indices.items():
        yield thread, _nest(np.asarray(rows), starts, ends)


def _nest(rows: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> Nesting:
    parents: list[int] = []
    changes: list[tuple[float, int]] = []
    stack: list[tuple[int, float]] = []

    def close_until(time: float) -> None:
        while stack and stack[-1][1] <= time:
            _, end = stack.pop()
            changes.append((end, stack[-1][0] if stack else NOWHERE))

    for row in rows:
        close_until(starts[row])
        parents.append(stack[-1][0] if stack else NOWHERE)
        # Timestamps are rounded, so an inner interval may seem to outlast its outer one.
        stack.append((row, min(ends[row], stack[-1][1]) if stack else ends[row]))
        changes.append((starts[row], row))
    close_until(np.inf)
    moments, innermost = zip(*changes, strict=True)
    return Nesting(rows, np.array(parents), np.array(moments), np.array(innermost))


def _nested(ranges: pd.DataFrame) -> pd.DataFrame:
    """Add each range's parent and path."""
    ranges = in_reading_order(ranges)
    parents = np.full(len(ranges), NOWHERE)
    for _, nesting in nestings(ranges):
        parents[nesting.rows] = nesting.parents
    paths: list[str] = []
    for name, parent in zip(ranges["name"], parents, strict=True):
        paths.append(name if parent == NOWHERE else f"{paths[parent]}/{name}")
    return ranges.assign(parent=parents, path=pd.Series(paths, dtype=object))


def _launching_range(events: pd.DataFrame, ranges: pd.DataFrame) -> np.ndarray:
    """Return the range open on the launching thread, or if it has none, the most recently opened one on another thread.

    The second rule is for a thread that works for another, as autograd's does for the thread that called `backward` and
    waits inside its range.
    """
    found, elsewhere = np.full((2, len(events)), NOWHERE)
    times = events["launch_us"].to_numpy(dtype=float)
    starts = np.append(ranges["start_us"].to_numpy(), -np.inf)
    for thread, nesting in nestings(ranges):
        here = nesting.at(times)
        found = np.where(events["thread"] == thread, here, found)
        elsewhere = np.where(starts[here] > starts[elsewhere], here, elsewhere)
    return np.where(found != NOWHERE, found, elsewhere)


def events_of(trace: Trace, path: str) -> pd.DataFrame:
    """Return the events launched inside ranges of this path, including their inner ranges.

    Adds the column `occurrence`: which of these ranges launched the event, counted from 0.
    """
    wanted = trace.ranges["path"] == path
    numbers = np.where(wanted, wanted.cumsum() - 1, NOWHERE)
    for row, parent in enumerate(trace.ranges["parent"]):  # parents come before their children
        if numbers[row] == NOWHERE and parent != NOWHERE:
            numbers[row] = numbers[parent]
    occurrence = np.append(numbers, NOWHERE)[trace.events["range_id"].to_numpy()]
    return trace.events.assign(occurrence=occurrence)[occurrence != NOWHERE]


def range_times(trace: Trace, path: str) -> pd.DataFrame:
    """Return the times of each range of this path in microseconds, one row per occurrence.

    kernel_sum_us: the sum of the durations of its events; busy_us: the time in which at least one of them ran; span_us:
    from their first start to their last end, the range as projected onto the device; range_us: the range itself by the
    host clock. Without device work the first three are 0.
    """
    occurrences, launched = trace.ranges[trace.ranges["path"] == path], events_of(trace, path)
    times = []
    for number, range_us in enumerate(occurrences["duration_us"]):
        events = launched[launched["occurrence"] == number]
        sums = {"kernel_sum_us": events["duration_us"].sum(), "busy_us": union_us(events), "span_us": span_us(events)}
        times.append({**sums, "range_us": range_us})
    return pd.DataFrame(times, columns=["kernel_sum_us", "busy_us", "span_us", "range_us"], dtype=float)
