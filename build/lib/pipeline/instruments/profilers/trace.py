"""The trace that every profiler gives: device work with the named ranges that launched it, and times over both.

A kernel runs later than the call that launched it, and on another thread of execution, so that its own time says
nothing of the range it belongs to. Here it belongs to the range that was open where and when it was launched: the
correlation id leads from the kernel to the launching call, that call's thread and host time lead to the range.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

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
    """Intervals that lie inside each other: each one's parent, and which is the innermost from each moment on.

    `parents` has an entry an interval; between `moments[i]` and `moments[i + 1]` the innermost is `innermost[i]`.
    NOWHERE stands for none.
    """

    parents: np.ndarray
    moments: np.ndarray
    innermost: np.ndarray

    def at(self, times: np.ndarray) -> np.ndarray:
        """Give the innermost interval at each time."""
        places = np.searchsorted(self.moments, times, side="right") - 1
        return np.where(places >= 0, self.innermost[places], NOWHERE) if len(self.moments) else np.full(len(times), -1)


def build_trace(
    work: pd.DataFrame,
    launches: pd.DataFrame,
    ranges: pd.DataFrame,
    profiler: str,
    categorise: Callable[[str, str], str],
) -> Trace:
    """Attribute device work to the ranges that launched it.

    work: name, stream, start_us, duration_us, correlation, and calls where not all 1; launches: correlation,
    launch_us, thread; ranges: name, thread, start_us, duration_us. categorise(name, path) names the kind of work.
    Work without a launch in the capture belongs to no range.
    """
    ranges = _nested(ranges)
    launches = launches.drop_duplicates("correlation")
    events = work.merge(launches, on="correlation", how="left").sort_values("start_us", kind="stable")
    events = events.reset_index(drop=True)
    if "calls" not in events:
        events["calls"] = 1
    events["range_id"] = _launching_range(events, ranges)
    paths = np.append(ranges["path"].to_numpy(dtype=object), "")  # NOWHERE, -1, finds the last
    events["path"] = paths[events["range_id"].to_numpy()]
    events["category"] = [categorise(*pair) for pair in zip(events["name"], events["path"], strict=True)]
    origin_us = min((table["start_us"].min() for table in (events, ranges) if len(table)), default=0.0)
    events["start_us"] -= origin_us
    ranges["start_us"] -= origin_us
    return Trace(events[list(EVENT_COLUMNS)], ranges[list(RANGE_COLUMNS)], profiler)


def nest(starts: np.ndarray, ends: np.ndarray) -> Nesting:
    """Find how the intervals of one thread lie inside each other, given in order of their starts, outer ones first."""
    parents, moments, innermost = np.full(len(starts), NOWHERE), [], []
    ends = np.array(ends, dtype=float)
    stack: list[int] = []

    def close_until(time: float) -> None:
        while stack and ends[stack[-1]] <= time:
            moments.append(ends[stack.pop()])
            innermost.append(stack[-1] if stack else NOWHERE)

    for current, start in enumerate(starts):
        close_until(start)
        if stack:
            parents[current] = stack[-1]
            # Clocks are read to a finite digit: an inner interval may seem to outlast its outer one.
            ends[current] = min(ends[current], ends[stack[-1]])
        stack.append(current)
        moments.append(start)
        innermost.append(current)
    close_until(np.inf)
    return Nesting(parents, np.array(moments, dtype=float), np.array(innermost, dtype=int))


def in_reading_order(intervals: pd.DataFrame) -> pd.DataFrame:
    """Sort intervals by start_us, outer ones (duration_us) before the inner ones that start with them."""
    order = np.lexsort((-intervals["duration_us"], intervals["start_us"]))
    return intervals.iloc[order].reset_index(drop=True)


def _nested(ranges: pd.DataFrame) -> pd.DataFrame:
    """Add each range's parent and path."""
    ranges = in_reading_order(ranges)
    parents = np.full(len(ranges), NOWHERE)
    for _, rows, nesting in _by_thread(ranges):
        inside = nesting.parents != NOWHERE
        parents[rows[inside]] = rows[nesting.parents[inside]]
    paths: list[str] = []
    for name, parent in zip(ranges["name"], parents, strict=True):
        paths.append(name if parent == NOWHERE else f"{paths[parent]}/{name}")
    return ranges.assign(parent=parents, path=pd.Series(paths, dtype=object))


def _by_thread(ranges: pd.DataFrame) -> list[tuple[Any, np.ndarray, Nesting]]:
    """Give, for each thread, the rows of its ranges and how these are nested."""
    found = []
    for thread, indices in ranges.groupby("thread").indices.items():
        rows = np.asarray(indices)
        starts = ranges["start_us"].to_numpy()[rows]
        found.append((thread, rows, nest(starts, starts + ranges["duration_us"].to_numpy()[rows])))
    return found


def _launching_range(events: pd.DataFrame, ranges: pd.DataFrame) -> np.ndarray:
    """Give the range open on the launching thread; where that has none, the latest open on any other.

    The second rule is for a thread that works for another one, as autograd's does for the thread that called
    `backward` and waits inside its range.
    """
    found = np.full(len(events), NOWHERE)
    times = events["launch_us"].to_numpy(dtype=float)
    launched = np.isfinite(times)
    starts = np.append(ranges["start_us"].to_numpy(), -np.inf)
    elsewhere = np.full(len(events), NOWHERE)
    for thread, rows, nesting in _by_thread(ranges):
        places = np.where(launched, nesting.at(times), NOWHERE)
        here = np.where(places != NOWHERE, rows[places], NOWHERE)
        own = (events["thread"] == thread).to_numpy()
        found[own] = here[own]
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
    occurrences = trace.ranges[trace.ranges["path"] == path]
    by_occurrence = dict(list(events_of(trace, path).groupby("occurrence")))
    nothing = trace.events.iloc[:0]
    times = []
    for number, range_us in enumerate(occurrences["duration_us"]):
        events = by_occurrence.get(number, nothing)
        sums = {"kernel_sum_us": events["duration_us"].sum(), "busy_us": union_us(events), "span_us": span_us(events)}
        times.append({**sums, "range_us": range_us})
    return pd.DataFrame(times, columns=["kernel_sum_us", "busy_us", "span_us", "range_us"], dtype=float)


def span_us(events: pd.DataFrame) -> float:
    """Return the time from the first start to the last end."""
    if events.empty:
        return 0.0
    return float((events["start_us"] + events["duration_us"]).max() - events["start_us"].min())


def union_us(events: pd.DataFrame) -> float:
    """Return the time in which at least one event ran, on whatever stream: what overlaps counts once."""
    if events.empty:
        return 0.0
    starts = events["start_us"].to_numpy(dtype=float)
    ends = starts + events["duration_us"].to_numpy(dtype=float)
    order = np.argsort(starts, kind="stable")
    starts, covered_until = starts[order], np.maximum.accumulate(ends[order])
    gaps = np.maximum(starts[1:] - covered_until[:-1], 0).sum()
    return float(covered_until[-1] - starts[0] - gaps)


def overlap_us(events: pd.DataFrame, others: pd.DataFrame) -> float:
    """Return the time in which at least one event of each table ran."""
    return union_us(events) + union_us(others) - union_us(pd.concat([events, others]))
