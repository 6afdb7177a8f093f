"""The interactive chart of one layer: each kernel of its forward pass over time, by the part that launched it."""

import json
from typing import Any

import pandas as pd

from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.charts import Chart, axis, bars_axis, colours, mark, picked, picker, tooltip
from pipeline.report.table_rows import known
from pipeline.stages.profile.report.facts import sorted_rows

# What launches kernels of a layer under no name of its own: the sums of the residual stream.
UNNAMED = "residual sums"


def layer_charts(rows: pd.DataFrame) -> list[Chart]:
    """Return the chart of the middle layers of all models, each at its longest context; none without such a row."""
    layers = known(sorted_rows(rows), "events")
    if layers.empty:
        return []
    longest = layers.groupby(["precision", "size"])["context_length"].transform("max")
    layers = layers[layers["context_length"] == longest].drop_duplicates(["precision", "size"])
    lines = [line for _, layer in layers.iterrows() for line in _lines(layer)]
    settings = list(dict.fromkeys(line["setting"] for line in lines))
    names = [name for name in CATEGORIES if name in {line["category"] for line in lines}]
    told = tooltip(kernel="kernel", category="kind of work", part="part of the layer", duration_us="time (µs)")
    spec = {
        "params": [picker("setting", "model", settings, settings[-1])],
        "transform": picked(setting="setting"),
        "height": {"step": 24},
        **mark(
            "bar",
            y=bars_axis("part", [line["part"] for line in lines]),
            x=axis("start_us", "time since the layer's first kernel (µs)"),
            x2={"field": "end_us"},
            color=colours("category", names),
            tooltip=told,
        ),
    }
    return [Chart("layer", "The middle layer's forward pass, kernel by kernel", spec, lines)]


def _lines(layer: pd.Series) -> list[dict[str, Any]]:
    """Return one line per event of a layer (pipeline.stages.profile.rows.LayerTimeline)."""
    setting = f"{layer['size']}, {layer['precision']}, context {int(layer['context_length'])}"
    return [
        {
            "setting": setting,
            "part": path.rpartition("/")[2].replace("_", " ") or UNNAMED,
            "kernel": kernel,
            "category": category,
            "start_us": start_us,
            "end_us": start_us + duration_us,
            "duration_us": duration_us,
        }
        for kernel, category, path, _stream, start_us, duration_us in json.loads(layer["events"])
    ]
