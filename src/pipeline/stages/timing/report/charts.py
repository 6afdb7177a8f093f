"""The interactive charts of the timing section: rate over work, and a step by model and way to run it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.charts import (
    DIGITS,
    IDLE_COLOUR,
    NEUTRAL,
    Chart,
    axis,
    bars_axis,
    colours,
    picked,
    picker,
    quartiles,
    records,
    shapes,
    tooltip,
)
from pipeline.report.figures import style_for
from pipeline.report.table_rows import known
from pipeline.stages.timing.report.figures import PEAK_WORDS, TERA
from pipeline.stages.timing.report.steps import (
    CELL,
    largest_context,
    main_precision,
    of_kind,
    reached_tflops_per_s,
    step_flops,
    warm,
)

STEP = ["size", "context_length", "precision", "status", "median_ms", "q1_ms", "q3_ms"]
KIND_WORDS = {
    "eager": "eager",
    "fused": "fused AdamW",
    "compiled": "compiled",
    "graph": "CUDA graph",
    "graph_fused": "graph, fused AdamW",
}
PARTS = {"GPU busy": style_for("computation")["color"], "GPU idle": IDLE_COLOUR, "wall time": NEUTRAL}


def charts(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> list[Chart]:
    """Return the charts of the stage, from all its rows; beside: those of the stage ceilings."""
    steps = of_kind(warm(rows), "eager")
    return [] if steps.empty else [_achieved(steps, reached_tflops_per_s(beside)), _ways(rows)]


def _achieved(steps: pd.DataFrame, reached: Mapping[str, float]) -> Chart:
    """Draw the rate of eager steps over their work, with quartiles, the peaks and what products alone reach."""
    work = pd.Series([step_flops(row) / TERA for _, row in steps.iterrows()], index=steps.index)
    drawn = steps.reindex(columns=[*STEP, "tokens_per_s", "mfu_pct", "gpu_idle_pct"]).assign(
        work=work,
        rate=1e3 * work / steps["median_ms"],
        low=1e3 * work / steps["q3_ms"],
        high=1e3 * work / steps["q1_ms"],
    )
    precisions = list(steps["precision"].unique())
    colour = {"field": "precision", **colours(precisions)}
    y = axis("rate", "achieved TFLOP/s", log=True)
    told = quartiles(
        precision="precision",
        size="model",
        context_length="context",
        work="TFLOP a step",
        rate="TFLOP/s",
        mfu_pct="MFU (%)",
        tokens_per_s="tokens/s",
        gpu_idle_pct="GPU idle (%)",
        status="status",
    )
    spec = {
        "height": 380,
        "encoding": {"x": axis("work", "work of one training step (TFLOP)", log=True)},
        "layer": [
            *_ceilings(steps, reached, y, colour),
            {
                "mark": {"type": "rule"},
                "encoding": {"y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
            },
            {
                "params": [{"name": "shown", "select": {"type": "point", "fields": ["precision"]}, "bind": "legend"}],
                "mark": {"type": "point", "filled": True, "size": 70},
                "encoding": {
                    "y": y,
                    "color": colour,
                    "shape": {"field": "precision", **shapes(precisions)},
                    "opacity": {"condition": {"param": "shown", "value": 1}, "value": 0.12},
                    "tooltip": told,
                },
            },
        ],
    }
    title = "Achieved TFLOP/s of eager training steps over the work of a step, by model, context and precision"
    return Chart("achieved", title, spec, records(drawn))


def _ceilings(
    steps: pd.DataFrame, reached: Mapping[str, float], y: dict[str, Any], colour: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the layers of peaks and of products alone, a line and its name each; none where none is known."""
    peaks = known(steps, "peak_tflops_per_s").sort_values("peak_tflops_per_s").drop_duplicates("precision", keep="last")
    lines = [
        {
            "precision": row["precision"],
            "peak": row["peak_tflops_per_s"],
            "text": f"{row['precision']} {PEAK_WORDS[row['peak_source']]}",
        }
        for row in peaks.to_dict("records")
    ]
    lines += [
        {"precision": precision, "peak": reached[precision], "text": f"{precision} matrix product alone"}
        for precision in steps["precision"].unique()
        if precision in reached
    ]
    shared = {"x": None, "y": {**y, "field": "peak"}, "color": colour}
    line = {"type": "rule", "strokeDash": [4, 4]}
    name = {"type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -2, "x": 0}
    layers = [
        {"mark": line, "encoding": shared},
        {"mark": name, "encoding": {**shared, "text": {"field": "text"}}},
    ]
    return [{"data": {"values": lines}, **layer} for layer in layers if lines]


def _ways(rows: pd.DataFrame) -> Chart:
    """Draw a training step by model and way to run it, split into GPU busy and idle where that is known."""
    steps = pd.concat([of_kind(warm(rows), kind).assign(kind=words) for kind, words in KIND_WORDS.items()])
    steps = steps.reindex(columns=[*STEP, "kind", "gpu_busy_ms", "gpu_idle_pct", "launches", "limited_by"])
    steps = steps.assign(
        setting=[f"{row['precision']}, context {row['context_length']}" for _, row in steps.iterrows()],
        bar=steps["size"] + ", " + steps["kind"],
        busy=steps["gpu_busy_ms"].clip(upper=steps["median_ms"]),
    )
    parts = {
        "GPU busy": steps["busy"],
        "GPU idle": steps["median_ms"] - steps["busy"],
        "wall time": steps["median_ms"].where(steps["busy"].isna()),
    }
    drawn = pd.concat([steps.assign(part=part, part_ms=part_ms) for part, part_ms in parts.items()])
    drawn = known(drawn, "part_ms")
    settings = list(steps.drop_duplicates("setting").sort_values(CELL[::2])["setting"])
    spec = {
        "params": [picker("setting", "precision and context", settings, _first_setting(rows, steps))],
        "transform": picked(setting="setting"),
        "height": {"step": 20},
        "encoding": {"y": bars_axis("bar", _bars(steps))},
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {
                    "x": axis("part_ms", "training step (ms)", stack="zero"),
                    "color": _part_colours(list(drawn["part"].unique())),
                    "order": {"field": "part"},
                    "tooltip": quartiles(
                        size="model",
                        kind="run",
                        part="part",
                        part_ms="of it (ms)",
                        gpu_idle_pct="GPU idle (%)",
                        launches="launches",
                        limited_by="limited by",
                        status="status",
                    ),
                },
            },
            {
                "mark": {"type": "rule"},
                "encoding": {"x": axis("q1_ms", ""), "x2": {"field": "q3_ms"}, "tooltip": tooltip(bar="step")},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6},
                "encoding": {"x": axis("median_ms", ""), "text": {"field": "median_ms", "format": DIGITS}},
            },
        ],
    }
    return Chart(
        "wall_and_idle", "One training step by model and way to run it, in ms of wall time", spec, records(drawn)
    )


def _part_colours(parts: list[str]) -> dict:
    scale = {"domain": parts, "range": [PARTS[part] for part in parts]}
    return {"field": "part", "type": "nominal", "scale": scale, "legend": {"title": None} if len(parts) > 1 else None}


def _bars(steps: pd.DataFrame) -> list[str]:
    """Return the names of the bars: by model, then by way to run it."""
    sizes = steps["size"].drop_duplicates()
    return [f"{size}, {kind}" for size in sizes for kind in KIND_WORDS.values()]


def _first_setting(rows: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Choose, of the precision in which people train, the context with most bars, or else that of the first screen."""
    precision = main_precision(rows)
    headline = f"{precision}, context {largest_context(rows, precision)}"
    counts = steps.loc[steps["precision"] == precision, "setting"].value_counts(sort=False)
    return headline if counts[headline] == counts.max() else str(counts.idxmax())
