"""torch.profiler as a source of traces: CUPTI's kernels on a GPU, on a CPU the operators in place of kernels.

The trace is read back from the file that torch.profiler exports, which Perfetto opens too.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from pipeline.instruments.profilers.kernel_categories import category
from pipeline.instruments.profilers.nsys import CaptureFailed
from pipeline.instruments.profilers.trace import NOWHERE, Trace, build_trace, in_reading_order, nest
from pipeline.ranges import listening

_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCHES = ("cuda_runtime", "cuda_driver")
# "aten::mm", "gloo:all_reduce"; not the nodes of autograd's graph, which call operators and compute nothing themselves.
_OPERATOR = re.compile(r"(?!autograd::|torch::)\w+:")


def capture(program: Callable[[], object], device: torch.device, path: Path) -> Trace:
    """Run a program under torch.profiler, leave the trace file (.json.gz) and return the trace."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler, listening(record_function):
        program()
    profiler.export_chrome_trace(str(path))
    return read_trace(path)


def read_trace(path: Path) -> Trace:
    """Read a file that torch.profiler exported; without work on a GPU, a CPU's operators are the events.

    Raises CaptureFailed, one line, where the file is damaged or cut short, or holds no work or no range.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CaptureFailed(f"{path.name} is no whole trace of torch.profiler: {str(error) or 'cut short'}") from None
    by_category: dict[str, list[dict]] = {}
    for event in found:
        if event.get("ph") == "X":
            by_category.setdefault(event.get("cat", ""), []).append(event)
    # PyTorch's own ranges, like "Optimizer.step#AdamW.step", have a # in their names.
    annotations = [event for event in by_category.get("user_annotation", []) if "#" not in event["name"]]
    on_device = [event for name in _DEVICE_WORK for event in by_category.get(name, [])]
    calls = [event for name in _LAUNCHES for event in by_category.get(name, [])]
    work, launches = _device_work(on_device, calls) if on_device else _operators(by_category.get("cpu_op", []))
    if work.empty or not annotations:
        raise CaptureFailed(f"{path.name} holds no {'work' if work.empty else 'range'}")
    return build_trace(work, launches, _intervals(annotations), "torch.profiler", category)


def _intervals(events: list[dict]) -> pd.DataFrame:
    rows = [(event["name"], event["tid"], float(event["ts"]), float(event["dur"])) for event in events]
    return pd.DataFrame(rows, columns=["name", "thread", "start_us", "duration_us"])


def _device_work(on_device: list[dict], calls: list[dict]) -> tuple[pd.DataFrame, pd.DataFrame]:
    arguments = [event.get("args", {}) for event in on_device]
    work = _intervals(on_device).drop(columns="thread")
    work["stream"] = [found.get("stream", 0) for found in arguments]
    work["correlation"] = [found.get("correlation", NOWHERE) for found in arguments]
    launches = _intervals(calls).rename(columns={"start_us": "launch_us"})[["launch_us", "thread"]]
    launches["correlation"] = [event.get("args", {}).get("correlation", NOWHERE) for event in calls]
    launches = launches[launches["correlation"] != NOWHERE]
    return work, launches.sort_values("launch_us", kind="stable")


def _operators(events: list[dict]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Give each operator the pieces of time in which it ran itself, not an operator that it called.

    So the durations add up to the time in operators, and no two pieces on a thread overlap. The pieces of one operator
    share a correlation id, and the first counts as the call.
    """
    operators = in_reading_order(_intervals(events))
    pieces = []
    for rows in operators.groupby("thread").indices.values():
        starts = operators["start_us"].to_numpy()[rows]
        nesting = nest(starts, starts + operators["duration_us"].to_numpy()[rows])
        moments, innermost = nesting.moments, nesting.innermost
        inside = innermost[:-1] != NOWHERE
        pieces.append(
            pd.DataFrame(
                {
                    "correlation": rows[innermost[:-1][inside]],
                    "start_us": moments[:-1][inside],
                    "duration_us": (moments[1:] - moments[:-1])[inside],
                }
            )
        )
    if not pieces:
        return pd.DataFrame(columns=["name"]), pd.DataFrame()
    work = pd.concat(pieces, ignore_index=True)
    work["calls"] = (~work["correlation"].duplicated()).astype(int)
    work["name"] = operators["name"].to_numpy()[work["correlation"]]
    work["stream"] = operators["thread"].to_numpy()[work["correlation"]]
    launches = operators.rename(columns={"start_us": "launch_us"})[["launch_us", "thread"]]
    return work[[bool(_OPERATOR.match(name)) for name in work["name"]]], launches.assign(correlation=launches.index)
