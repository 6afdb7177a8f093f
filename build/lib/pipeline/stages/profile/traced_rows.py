"""Make the rows of a trace: times by clock, categories, kernels, attention's phases, one layer's timeline."""

import json
import re
from typing import Any

import pandas as pd

from pipeline.instruments.profilers.trace import Trace, events_of, range_times
from pipeline.stages.profile.cell import (
    ATTENTION_PHASES,
    BACKWARD,
    BACKWARD_BY_PART,
    BACKWARD_OF,
    STEP_PARTS,
    Cell,
    Settings,
)
from pipeline.stages.profile.kernel_names import short_name

Row = dict[str, Any]

# The column of `range_times` that each clock of a trace reads.
CLOCK_COLUMNS = {"profiled": "range_us", "span": "span_us", "busy": "busy_us", "kernel_sum": "kernel_sum_us"}
LAYER = re.compile(r"(.*/layers\.\d+)(?:/|$)")


def rows_of(trace: Trace, passes: list[str], cell: Cell, settings: Settings) -> list[Row]:
    """Return all rows of these passes."""
    paths = [*passes, *(STEP_PARTS if "train_step" in passes else ())]
    with_kernels = [path for path in (*passes, BACKWARD) if path in paths]
    with_attention = ["inference", *([BACKWARD_BY_PART] if BACKWARD_OF in passes else [])]
    rows = [
        *(row for path in paths for row in _time_rows(trace, path)),
        *(row for path in paths for row in _category_rows(trace, path)),
        *(row for path in with_kernels for row in _kernel_rows(trace, path, settings.top_kernels)),
        *(row for name in with_attention for row in _attention_rows(trace, name, cell, settings)),
        *_layer_rows(trace, passes[0]),
    ]
    return [{**row, "status": "ok"} for row in rows]


def kernel_table(trace: Trace, passes: list[str]) -> pd.DataFrame:
    """List every kernel of every pass by its full name, with count and time per run of the pass.

    Columns: range, name, category, count, time_ms, share_pct, avg_us, min_us, max_us.
    """
    tables = [_by_kernel(trace, name).assign(range=name) for name in passes]
    columns = ["range", "name", "category", "count", "time_ms", "share_pct", "avg_us", "min_us", "max_us"]
    return pd.concat(tables, ignore_index=True)[columns]


def _time_rows(trace: Trace, path: str) -> list[Row]:
    times = range_times(trace, path)
    rows = []
    for clock, column in CLOCK_COLUMNS.items():
        samples_ms = [float(value) / 1e3 for value in times[column]]
        # A range that launched nothing has no time on the device and no statistics.
        if min(samples_ms) > 0:
            rows.append({"kind": "time", "range": path, "clock": clock, "samples_ms": samples_ms})
    return rows


def _rounds(trace: Trace, path: str) -> int:
    return int((trace.ranges["path"] == path).sum())


def _category_rows(trace: Trace, path: str) -> list[Row]:
    groups = events_of(trace, path).groupby("category")[["duration_us", "calls"]].sum()
    return [
        {
            "kind": "category",
            "range": path,
            "category": category,
            "count": float(group["calls"]) / _rounds(trace, path),
            "time_ms": float(group["duration_us"]) / _rounds(trace, path) / 1e3,
        }
        for category, group in groups.sort_values("duration_us", ascending=False).iterrows()
    ]


def _by_kernel(trace: Trace, path: str) -> pd.DataFrame:
    """Sum the events of a range by name and category, per run, most time first."""
    events, rounds = events_of(trace, path), _rounds(trace, path)
    table = (
        events.groupby(["name", "category"])
        .agg(
            count=("calls", "sum"),
            time_us=("duration_us", "sum"),
            min_us=("duration_us", "min"),
            max_us=("duration_us", "max"),
        )
        .reset_index()
        .sort_values("time_us", ascending=False, kind="stable", ignore_index=True)
    )
    table["share_pct"] = 100 * table["time_us"] / table["time_us"].sum()
    table["avg_us"] = table["time_us"] / table["count"]
    table["time_ms"] = table["time_us"] / rounds / 1e3
    table["count"] = table["count"] / rounds
    return table


def _kernel_rows(trace: Trace, path: str, top: int) -> list[Row]:
    table = _by_kernel(trace, path)
    table = table[table["count"] > 0]
    short = table["name"].map(short_name)
    table = table.assign(kernel=short).head(top)
    columns = ["kernel", "category", "count", "time_ms"]
    return [
        {"kind": "kernel", "range": path, "rank": rank, **{str(name): value for name, value in row.items()}}
        for rank, row in enumerate(table[columns].to_dict("records"), start=1)
    ]


def _attention_rows(trace: Trace, name: str, cell: Cell, settings: Settings) -> list[Row]:
    """Return a row per phase of attention over all layers, for inference or the backward pass with parts.

    time_ms: the whole phase; matmul_ms: only its matrix products, without scaling, masking and casts.
    """
    direction = "backward" if name == BACKWARD_BY_PART else "forward"
    events = events_of(trace, name)
    if direction == "backward":
        events = events[events["path"].str.startswith(f"{name}/backward/")]
    rows = []
    for phase in ATTENTION_PHASES:
        inside = events[events["path"].str.endswith(f"/attention/{phase}")]
        if inside.empty:
            continue
        products = inside[inside["category"] == "matmul"]
        rows.append(
            {
                "kind": "attention",
                "range": name,
                "phase": phase,
                "count": float(inside["calls"].sum()) / _rounds(trace, name),
                "time_ms": float(inside["duration_us"].sum()) / _rounds(trace, name) / 1e3,
                "matmul_ms": float(products["duration_us"].sum()) / _rounds(trace, name) / 1e3,
            }
        )
    return rows


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
    layer_name = chosen.rpartition("/")[2]
    return [{"kind": "layer", "range": name, "layer": layer_name, "events": json.dumps(timeline)}]
