"""Make the rows of a trace: times by clock, categories, kernels, attention's phases, one layer's timeline."""

import json
import re
from typing import Any

import pandas as pd

from pipeline.instruments.profilers.trace import Trace, events_of, range_times
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD, BACKWARD_BY_PART, BACKWARD_OF, STEP_PARTS

Row = dict[str, Any]

# The column of `range_times` that each clock of a trace reads.
CLOCK_COLUMNS = {"profiled": "range_us", "span": "span_us", "busy": "busy_us", "kernel_sum": "kernel_sum_us"}
LAYER = re.compile(r"(.*/layers\.\d+)(?:/|$)")
_PREFIXES = re.compile(r"\(anonymous namespace\)::|<unnamed>::|^void |^std::enable_if<.*?>::type ")
_CUTLASS = re.compile(r"cutlass\w*::Kernel2?<(\w+)>")
# PyTorch instantiates these templates for many operations; the template's arguments name the operation.
_TEMPLATES = ("elementwise_kernel", "reduce_kernel", "multi_tensor_apply_kernel")
_OPERATION = re.compile(r"\w+Functor\w*|\w+_functor|\w+Ops|\w+_kernel(?:_cuda|_impl)?\b")
_WRAPPERS = ("BinaryFunctor", "UnaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "gpu_kernel_impl")


def rows_of(trace: Trace, passes: list[str], top_kernels: int) -> list[Row]:
    """Return all rows of these passes."""
    paths = [*passes, *(STEP_PARTS if "train_step" in passes else ())]
    with_kernels = [path for path in (*passes, BACKWARD) if path in paths]
    with_attention = ["inference", *([BACKWARD_BY_PART] if BACKWARD_OF in passes else [])]
    found = {
        "time": {path: _time_rows(trace, path) for path in paths},
        "category": {path: _category_rows(trace, path) for path in paths},
        "kernel": {path: _kernel_rows(trace, path, top_kernels) for path in with_kernels},
        "attention": {path: _attention_rows(trace, path) for path in with_attention},
        "layer": {passes[0]: _layer_rows(trace, passes[0])},
    }
    return [
        {"kind": kind, "range": path, "status": "ok", **row}
        for kind, by_path in found.items()
        for path, rows in by_path.items()
        for row in rows
    ]


def kernel_table(trace: Trace, passes: list[str]) -> pd.DataFrame:
    """List every kernel of every pass by its full name, with count and time per run of the pass.

    Columns: range, name, category, count, time_ms, share_pct, avg_us, median_us, std_us, min_us, max_us.
    """
    table = pd.concat([_by_kernel(trace, name).assign(range=name) for name in passes], ignore_index=True)
    table["share_pct"] = 100 * table["time_ms"] / table.groupby("range")["time_ms"].transform("sum")
    table["avg_us"] = 1e3 * table["time_ms"] / table["count"]
    times = ["avg_us", "median_us", "std_us", "min_us", "max_us"]
    return table[["range", "name", "category", "count", "time_ms", "share_pct", *times]]


def _per_run(trace: Trace, path: str) -> pd.DataFrame:
    """Return the events of a range; `count` and `time_ms` are divided by its runs, so their sums are per run."""
    events, rounds = events_of(trace, path), int((trace.ranges["path"] == path).sum())
    return events.assign(count=events["calls"] / rounds, time_ms=events["duration_us"] / rounds / 1e3)


def _time_rows(trace: Trace, path: str) -> list[Row]:
    times = range_times(trace, path)
    samples_ms = {clock: [float(value) / 1e3 for value in times[name]] for clock, name in CLOCK_COLUMNS.items()}
    # A range that launched nothing has no time on the device and no statistics.
    return [{"clock": clock, "samples_ms": samples} for clock, samples in samples_ms.items() if min(samples) > 0]


def _category_rows(trace: Trace, path: str) -> list[Row]:
    found = _per_run(trace, path).groupby("category")[["count", "time_ms"]].sum()
    return _as_rows(found.sort_values("time_ms", ascending=False).reset_index())


def _by_kernel(trace: Trace, path: str) -> pd.DataFrame:
    """Sum the events of a range by name and category, per run, most time first."""
    groups = _per_run(trace, path).groupby(["name", "category"])
    return (
        groups.agg(
            count=("count", "sum"),
            time_ms=("time_ms", "sum"),
            median_us=("duration_us", "median"),
            std_us=("duration_us", lambda durations: durations.std(ddof=0)),
            min_us=("duration_us", "min"),
            max_us=("duration_us", "max"),
        )
        .reset_index()
        .sort_values("time_ms", ascending=False, kind="stable", ignore_index=True)
    )


def _kernel_rows(trace: Trace, path: str, top: int) -> list[Row]:
    table = _by_kernel(trace, path).query("count > 0").head(top)
    table = table.assign(kernel=table["name"].map(short_name), rank=range(1, len(table) + 1))
    return _as_rows(table[["rank", "kernel", "category", "count", "time_ms", "median_us", "std_us"]])


def _as_rows(table: pd.DataFrame) -> list[Row]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _attention_rows(trace: Trace, name: str) -> list[Row]:
    """Return a row per phase of attention over all layers, for inference or the backward pass with parts.

    time_ms: the whole phase; matmul_ms: only its matrix products, without scaling and casts.
    """
    events = _per_run(trace, name)
    if name == BACKWARD_BY_PART:
        events = events[events["path"].str.startswith(f"{name}/backward/")]
    phase = pd.Categorical(events["path"].str.extract(r"/attention/([^/]+)$")[0], ATTENTION_PHASES)
    events = events.assign(phase=phase, matmul_ms=events["time_ms"].where(events["category"] == "matmul", 0.0))
    sums = events.groupby("phase", observed=True)[["count", "time_ms", "matmul_ms"]].sum()
    return _as_rows(sums.reset_index())


def _layer_rows(trace: Trace, name: str) -> list[Row]:
    """Return one row with the events of the middle layer's forward pass, in the last run of the pass.

    `events` is JSON: for each event its short name, category, path inside the layer, stream, start_us after the first
    event, and duration_us.
    """
    events = events_of(trace, name)
    events = events[events["occurrence"] == events["occurrence"].max()]
    layer = events["path"].str.extract(LAYER)[0]
    layers = list(layer.dropna().unique())
    if not layers:
        return []
    chosen = layers[len(layers) // 2]
    inside = events[layer == chosen]
    start_us = inside["start_us"].min()
    timeline = [
        [
            short_name(event["name"]),
            event["category"],
            event["path"].removeprefix(chosen).strip("/"),
            int(event["stream"]),
            round(float(event["start_us"] - start_us), 3),
            round(float(event["duration_us"]), 3),
        ]
        for event in inside.to_dict("records")
    ]
    return [{"layer": chosen.rpartition("/")[2], "events": json.dumps(timeline)}]


def short_name(name: str) -> str:
    """Shorten a kernel's name to its function and, for a template of many operations, the operation.

    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, ...>(...)" becomes
    "vectorized_elementwise_kernel<CUDAFunctor_add>". Names without arguments, such as those of cuBLAS, Triton,
    PyTorch's operators and device copies, stay as they are.
    """
    text = _PREFIXES.sub("", name)
    if cutlass := _CUTLASS.match(text):
        return cutlass[1]
    # The leading identifier.
    head = re.split(r"[^\w:]", text, maxsplit=1)[0]
    arguments = text[len(head) :]
    if not arguments.startswith(("<", "(")):
        return text
    function = "::".join(head.split("::")[-2:]) if head.endswith("::kernel") else head.rpartition("::")[2]
    if not function.endswith(_TEMPLATES):
        return function
    operations = [name for name in _OPERATION.findall(arguments) if name not in _WRAPPERS]
    return f"{function}<{operations[0]}>" if operations else function
