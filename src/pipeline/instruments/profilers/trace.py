"""The trace that every profiler gives: device work with the named ranges that launched it, and times over both.

A kernel runs later than the call that launched it, and on another thread of execution, so that its own time says
nothing of the range it belongs to. Here it belongs to the range that was open where and when it was launched: the
correlation id leads from the kernel to the launching call, that call's thread and host time lead to the range.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.instruments.profilers.intervals import span_us, union_us
from pipeline.instruments.profilers.kernel_categories import category

# Device work, in order of its start.
EVENT_COLUMNS = (
    "name",  # of the kernel, copy or operator, in full
    "category",  # what kind of work it is: see `pipeline.instruments.profilers.kernel_categories`
    "stream",  # where it ran, in order with what else ran there; on a CPU the thread
    "start_us",  # by the device's clock, from the first event or range of the capture on
    "duration_us",
    "calls",  # 1; of an operator that others interrupted, which has one row per piece, 0 in all pieces but the first
    "correlation",  # the id that it shares with the call that launched it, -1 where there is none
    "range_id",  # the innermost range that launched it: a row of the ranges, -1 outside of any
    "path",  # that range and those around it, outermost first: "train_step/forward/attention/softmax"
)
# Named ranges of the host, in order of their start.
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
    """How intervals of one thread, rows of a table, lie inside each other.

    `parents` has an entry an interval; between `moments[i]` and `moments[i + 1]` the innermost is `innermost[i]`.
    All are rows of the table; NOWHERE stands for none.
    """

    rows: np.ndarray
    parents: np.ndarray
    moments: np.ndarray
    innermost: np.ndarray

    def at(self, times: np.ndarray) -> np.ndarray:
        """Give the innermost interval at each time."""
        # Before the first moment the place is -1, which finds the last: there, as for no time, none is open any more.
        return self.innermost[np.searchsorted(self.moments, times, side="right") - 1]


def build_trace(work: pd.DataFrame, launches: pd.DataFrame, ranges: pd.DataFrame, profiler: str) -> Trace:
    """Attribute device work to the ranges that launched it.

    work: name, stream, start_us, duration_us, correlation, and calls where not all 1; launches: correlation,
    launch_us, thread; ranges: name, thread, start_us, duration_us. Work without a launch in the capture belongs to no
    range.
    """
    ranges = _nested(ranges)
    events = work.merge(launches.drop_duplicates("correlation"), on="correlation", how="left")
    events = events.sort_values("start_us", kind="stable", ignore_index=True)
    if "calls" not in events:
        events["calls"] = 1
    events["range_id"] = _launching_range(events, ranges)
    paths = np.append(ranges["path"].to_numpy(dtype=object), "")  # NOWHERE, -1, finds the last
    events["path"] = paths[events["range_id"].to_numpy()]
    events["category"] = list(map(category, events["name"], events["path"]))
    origin_us = min((table["start_us"].min() for table in (events, ranges) if len(table)), default=0.0)
    events["start_us"] -= origin_us
    ranges["start_us"] -= origin_us
    return Trace(events[list(EVENT_COLUMNS)], ranges[list(RANGE_COLUMNS)], profiler)


def in_reading_order(intervals: pd.DataFrame) -> pd.DataFrame:
    """Sort intervals by start_us, outer ones (duration_us) before the inner ones that start with them."""
    return intervals.sort_values(["start_us", "duration_us"], ascending=[True, False], ignore_index=True)


def nestings(intervals: pd.DataFrame) -> Iterator[tuple[Any, Nesting]]:
    """Yield each thread with how its intervals, which stand in reading order, lie inside each other."""
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
        # Clocks are read to a finite digit: an inner interval may seem to outlast its outer one.
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
    """Give the range open on the launching thread; where that has none, the latest open on any other.

    The second rule is for a thread that works for another one, as autograd's does for the thread that called
    `backward` and waits inside its range.
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
    """Select what was launched inside ranges of this path, inner ranges included.

    Returns the events with `occurrence`: in which of these ranges each was launched, counted from 0.
    """
    wanted = trace.ranges["path"] == path
    numbers = np.where(wanted, wanted.cumsum() - 1, NOWHERE)
    for row, parent in enumerate(trace.ranges["parent"]):  # parents come before their children
        if numbers[row] == NOWHERE and parent != NOWHERE:
            numbers[row] = numbers[parent]
    occurrence = np.append(numbers, NOWHERE)[trace.events["range_id"].to_numpy()]
    return trace.events.assign(occurrence=occurrence)[occurrence != NOWHERE]


def range_times(trace: Trace, path: str) -> pd.DataFrame:
    """Give the times of each range of this path, one row per occurrence, in microseconds.

    kernel_sum_us: the durations of what it launched, added up; busy_us: the time in which any of that ran, work that
    overlaps counted once; span_us: from the first start to the last end of it, the range as projected onto the
    device; range_us: the range itself, by the host clock. Without device work the first three are 0.
    """
    occurrences, launched = trace.ranges[trace.ranges["path"] == path], events_of(trace, path)
    times = []
    for number, range_us in enumerate(occurrences["duration_us"]):
        events = launched[launched["occurrence"] == number]
        sums = {"kernel_sum_us": events["duration_us"].sum(), "busy_us": union_us(events), "span_us": span_us(events)}
        times.append({**sums, "range_us": range_us})
    return pd.DataFrame(times, columns=["kernel_sum_us", "busy_us", "span_us", "range_us"], dtype=float)
