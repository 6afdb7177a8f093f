"""The interactive charts of the timing section: rate over work, and a step by model and way to run it."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.charts import (
    DASHED,
    DIGITS,
    IDLE_COLOUR,
    LABELS,
    NEUTRAL,
    POINTS,
    Chart,
    axis,
    bars_axis,
    coloured,
    colours,
    mark,
    picked,
    picker,
    quartiles,
    shapes,
    tooltip,
)
from pipeline.report.figures import style_for
from pipeline.report.table_rows import known, records
from pipeline.stages.timing.report.figures import PEAK_WORDS, TERA
from pipeline.stages.timing.report.steps import (
    CELL,
    every_batch,
    largest_context,
    main_precision,
    of_mode,
    reached_tflops_per_s,
    step_flops,
    warm,
)

STEP = ["size", "context_length", "batch_size", "precision", "status", "median_ms", "q1_ms", "q3_ms"]
MODES = ("eager", "compiled")
PARTS = {"GPU busy": style_for("computation")["color"], "GPU idle": IDLE_COLOUR, "wall time": NEUTRAL}


def charts(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> list[Chart]:
    """Return the charts of the stage, from all its rows; beside: those of the stage ceilings."""
    steps = of_mode(every_batch(rows), "eager")
    return [] if steps.empty else [_achieved(steps, reached_tflops_per_s(steps, beside)), _ways(rows)]


def _achieved(steps: pd.DataFrame, reached: Mapping[str, float]) -> Chart:
    """Draw the rate of eager steps over their work, with quartiles, the peaks and what products alone reach."""
    work = pd.Series([step_flops(row) / TERA for _, row in steps.iterrows()], index=steps.index)
    drawn = steps[[*STEP, "tokens_per_s", "mfu_pct", "gpu_idle_pct"]].assign(
        work=work,
        rate=1e3 * work / steps["median_ms"],
        low=1e3 * work / steps["q3_ms"],
        high=1e3 * work / steps["q1_ms"],
    )
    precisions = list(steps["precision"].unique())
    colour, y = colours("precision", precisions), axis("rate", "achieved TFLOP/s", log=True)
    told = quartiles(
        precision="precision",
        size="model",
        context_length="context",
        batch_size="batch",
        work="TFLOP a step",
        rate="TFLOP/s",
        mfu_pct="MFU (%)",
        tokens_per_s="tokens/s",
        gpu_idle_pct="GPU idle (%)",
        status="status",
    )
    shape = shapes("precision", {name: style_for(name)["marker"] for name in precisions})
    faint = {"condition": {"param": "shown", "value": 1}, "value": 0.12}
    by_legend = [{"name": "shown", "select": {"type": "point", "fields": ["precision"]}, "bind": "legend"}]
    points = mark("point", POINTS, y=y, color=colour, shape=shape, opacity=faint, tooltip=told)
    lines = _ceilings(steps, reached)
    line = {"x": None, "y": {**y, "field": "peak"}, "color": colour}
    name = {"align": "left", "baseline": "bottom", "dx": 4, "dy": -2, "x": 0}
    ceilings = [mark("rule", DASHED, **line), mark("text", name, **line, text={"field": "text"})]
    spec = {
        "height": 380,
        "encoding": {"x": axis("work", "work of one training step (TFLOP)", log=True)},
        "layer": [
            *({"data": {"values": lines}, **layer} for layer in ceilings if lines),
            mark("rule", y={**y, "field": "low"}, y2={"field": "high"}, color=colour),
            {"params": by_legend, **points},
        ],
    }
    title = "Achieved TFLOP/s of eager training steps over the work of a step, by model, context and precision"
    return Chart("achieved", title, spec, records(drawn))


def _ceilings(steps: pd.DataFrame, reached: Mapping[str, float]) -> list[dict[str, Any]]:
    """Return the rates and names of peaks and of products alone; none where none is known."""
    peaks = known(steps, "peak_tflops_per_s").sort_values("peak_tflops_per_s").drop_duplicates("precision", keep="last")
    named = [
        (row["precision"], row["peak_tflops_per_s"], PEAK_WORDS[row["peak_source"]]) for _, row in peaks.iterrows()
    ]
    named += [(one, reached[one], "matrix product alone") for one in steps["precision"].unique() if one in reached]
    return [{"precision": precision, "peak": rate, "text": f"{precision} {words}"} for precision, rate, words in named]


def _ways(rows: pd.DataFrame) -> Chart:
    """Draw a training step by model and way to run it, split into GPU busy and idle where that is known."""
    steps = pd.concat([of_mode(warm(rows), mode) for mode in MODES])
    steps = steps[[*STEP, "mode", "gpu_busy_ms", "gpu_idle_pct", "launches", "limited_by"]]
    steps = steps.assign(
        setting=[f"{row['precision']}, context {row['context_length']}" for _, row in steps.iterrows()],
        bar=steps["size"] + ", " + steps["mode"],
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
    present = {part: colour for part, colour in PARTS.items() if part in set(drawn["part"])}
    told = quartiles(
        size="model",
        mode="run",
        part="part",
        part_ms="of it (ms)",
        gpu_idle_pct="GPU idle (%)",
        launches="launches",
        limited_by="limited by",
        status="status",
    )
    colour = coloured("part", present, legend=len(present) > 1)
    x, order = axis("part_ms", "training step (ms)", stack="zero"), {"field": "part"}
    number = {"field": "median_ms", "format": DIGITS}
    bars = [f"{size}, {mode}" for size in steps["size"].drop_duplicates() for mode in MODES]
    spec = {
        "params": [picker("setting", "precision and context", settings, _first_setting(rows, steps))],
        "transform": picked(setting="setting"),
        "height": {"step": 20},
        "encoding": {"y": bars_axis("bar", bars)},
        "layer": [
            mark("bar", x=x, color=colour, order=order, tooltip=told),
            mark("rule", x=axis("q1_ms", ""), x2={"field": "q3_ms"}, tooltip=tooltip(bar="step")),
            mark("text", LABELS, x=axis("q3_ms", ""), text=number),
        ],
    }
    title = "One training step by model and way to run it, in ms of wall time"
    return Chart("wall_and_idle", title, spec, records(drawn))


def _first_setting(rows: pd.DataFrame, steps: pd.DataFrame) -> str:
    """Choose, of the precision in which people train, the context with most bars, or else that of the first screen."""
    precision = main_precision(rows)
    headline = f"{precision}, context {largest_context(rows, precision)}"
    counts = steps.loc[steps["precision"] == precision, "setting"].value_counts(sort=False)
    return headline if counts[headline] == counts.max() else str(counts.idxmax())
