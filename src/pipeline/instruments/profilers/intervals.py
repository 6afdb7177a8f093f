"""Read intervals of work (tables of start_us and duration_us) from a profile; compute their unions and overlaps."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from torch.autograd import DeviceType


def work_of(events: Iterable[Any], on_gpu: bool) -> pd.DataFrame:
    """Return the work among a profile's raw events: name, start_us since the first start, duration_us.

    On a GPU, the named ranges that the profiler projects onto it are left out. Raw events, because torch's own event
    objects take twenty times as long.
    """
    found = [
        (event.name(), event.start_ns(), event.duration_ns() / 1e3)
        for event in events
        if (event.device_type() == DeviceType.CUDA) == on_gpu and not (on_gpu and event.is_user_annotation())
    ]
    work = pd.DataFrame(found, columns=["name", "start_ns", "duration_us"])
    # Subtract integers: a float cannot hold the nanoseconds since 1970 exactly.
    work["start_us"] = (work["start_ns"] - work["start_ns"].min()) / 1e3
    return work[["name", "start_us", "duration_us"]]


def united(work: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Merge overlapping intervals across streams; return the starts and ends of the merged ones."""
    work = work.sort_values("start_us", kind="stable")
    starts = work["start_us"].to_numpy(dtype=float)
    ends = np.maximum.accumulate(starts + work["duration_us"].to_numpy(dtype=float))
    begins = starts > np.concatenate([[-np.inf], ends[:-1]])[: len(starts)]
    return starts[begins], ends[np.roll(begins, -1)]


def span_us(work: pd.DataFrame) -> float:
    """Return the time from the first start to the last end."""
    return float((work["start_us"] + work["duration_us"]).max() - work["start_us"].min()) if len(work) else 0.0


def union_us(work: pd.DataFrame) -> float:
    """Return the time in which at least one event ran; overlaps count once."""
    starts, ends = united(work)
    return float((ends - starts).sum())


def overlap_us(work: pd.DataFrame, others: pd.DataFrame) -> float:
    """Return the time in which at least one event of each table ran."""
    # Rounding to nanoseconds, finer than any clock, removes the floating-point error of the subtraction.
    return max(0.0, round(union_us(work) + union_us(others) - union_us(pd.concat([work, others])), 3))
