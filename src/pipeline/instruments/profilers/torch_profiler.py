"""Capture traces with torch.profiler: CUPTI's kernels on a GPU, operators in place of kernels on a CPU.

The trace is read back from the file that torch.profiler exports, which Perfetto opens too.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.trace import NOWHERE, Trace, build_trace, in_reading_order, nestings
from pipeline.ranges import listening

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_READ = (*_DEVICE_WORK, *_LAUNCHES, "user_annotation", "cpu_op")
# "aten::mm", "gloo:all_reduce"; not the nodes of autograd's graph, which only call operators.
_OPERATOR = r"(?!autograd::|torch::)\w+:"


def capture(program: Callable[[], object], device: torch.device, path: Path) -> Trace:
    """Run a program under torch.profiler, write the trace file (.json.gz) and return the trace."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler, listening(record_function):
        program()
    profiler.export_chrome_trace(str(path))
    return read_trace(path)


def read_trace(path: Path) -> Trace:
    """Read a file that torch.profiler exported; without GPU work, the CPU's operators are the events.

    Raises CaptureFailed with a one-line reason if the file is damaged or truncated, or has no work or no range.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CaptureFailed(f"{path.name} is no whole trace of torch.profiler: {str(error) or 'cut short'}") from None
    events = _table([event for event in found if event.get("ph") == "X" and event.get("cat") in _READ])
    # PyTorch's own ranges, like "Optimizer.step#AdamW.step", have a # in their names.
    ranges = events[(events["category"] == "user_annotation") & ~events["name"].str.contains("#", regex=False)]
    work, launches = events[events["category"].isin(_DEVICE_WORK)], events[events["category"].isin(_LAUNCHES)]
    if work.empty:
        work, launches = _operators(events[events["category"] == "cpu_op"])
    if work.empty or ranges.empty:
        raise CaptureFailed(f"{path.name} holds no {'work' if work.empty else 'range'}")
    launches = launches[launches["correlation"] != NOWHERE].rename(columns={"start_us": "launch_us"})
    launches = launches.sort_values("launch_us", kind="stable")[["correlation", "launch_us", "thread"]]
    return build_trace(work.drop(columns=["thread", "category"]), launches, ranges, "torch.profiler")


def _table(events: list[dict]) -> pd.DataFrame:
    arguments = [event.get("args", {}) for event in events]
    return pd.DataFrame(
        {
            "name": pd.Series([event["name"] for event in events], dtype=str),
            "category": [event["cat"] for event in events],
            "thread": [event["tid"] for event in events],
            "start_us": np.array([event["ts"] for event in events], dtype=float),
            "duration_us": np.array([event["dur"] for event in events], dtype=float),
            "stream": [found.get("stream", 0) for found in arguments],
            "correlation": [found.get("correlation", NOWHERE) for found in arguments],
        }
    )


def _operators(operators: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the pieces of time in which each operator itself ran, not one that it called; and the operators.

    The durations thus add up to the time in operators, and pieces on one thread never overlap. The pieces of an
    operator share a correlation id, and the first counts as the call.
    """
    operators = in_reading_order(operators)
    operators["correlation"], operators["stream"] = operators.index, operators["thread"]
    pieces = [
        pd.DataFrame(
            {
                "correlation": nesting.innermost[:-1],
                "start_us": nesting.moments[:-1],
                "duration_us": np.diff(nesting.moments),
            }
        )
        for _, nesting in nestings(operators)
    ]
    found = pd.concat([pd.DataFrame(columns=["correlation"], dtype=int), *pieces], ignore_index=True)
    found = found[found["correlation"] != NOWHERE]
    work = found.merge(operators.drop(columns=["start_us", "duration_us"]), on="correlation")
    work["calls"] = (~work["correlation"].duplicated()).astype(int)
    return work[work["name"].str.match(_OPERATOR).astype(bool)], operators
