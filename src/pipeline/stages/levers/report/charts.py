"""The interactive chart of the levers section: a training step with each combination of levers."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.charts import (
    IDLE_COLOUR,
    LABELS,
    NEUTRAL,
    STRONG,
    Chart,
    axis,
    bars_axis,
    coloured,
    mark,
    picked,
    picker,
    quartiles,
)
from pipeline.report.lever_words import joined
from pipeline.report.table_rows import ok, records
from pipeline.stages.levers.cell import EAGER, LEVERS
from pipeline.stages.levers.report.selection import ladder, largest, models, ordered, rank, with_gain

PARTS = {"eager": IDLE_COLOUR, "one lever": NEUTRAL, "several levers": STRONG}


def charts(rows: pd.DataFrame) -> list[Chart]:
    """Return the charts of the stage, from all its rows."""
    rows = ordered(rows)
    return [_steps(rows)] if models(rows) else []


def _steps(rows: pd.DataFrame) -> Chart:
    """Draw the time of a step, one bar per combination; those of the ladder can be shown alone."""
    shown = pd.concat(map(_one_model, models(rows)))
    bars = list(shown.sort_values("rank", kind="stable")["bar"])
    first = _one_model(largest(rows))["model"].iloc[0]
    shown = shown.reindex(
        columns=[
            *("model", "bar", "levers", "part", "ladder", "gain", "text", "status", "median_ms", "q1_ms", "q3_ms"),
            *("peak_gb", "tokens_per_s", "mfu_pct", "gpu_idle_pct", "launches"),
        ]
    )
    told = quartiles(
        levers="levers",
        gain="times as fast as eager",
        peak_gb="peak (GB)",
        tokens_per_s="tokens/s",
        mfu_pct="MFU (%)",
        gpu_idle_pct="GPU idle (%)",
        launches="launches",
        status="status",
    )
    colour = coloured("part", {part: PARTS[part] for part in shown["part"].unique()})
    spec = {
        "params": [
            picker("model", "model", list(shown["model"].unique()), first),
            picker("which", "combinations", ["all", "one lever more each"], "all"),
        ],
        "transform": [*picked(model="model"), {"filter": "which === 'all' || datum.ladder"}],
        "height": {"step": 22},
        "encoding": {"y": bars_axis("bar", bars)},
        "layer": [
            mark("bar", x=axis("median_ms", "training step (ms)"), color=colour, tooltip=told),
            mark("rule", x=axis("q1_ms", ""), x2={"field": "q3_ms"}),
            mark("text", LABELS, x=axis("q3_ms", ""), text={"field": "text"}),
        ],
    }
    return Chart("gains", "One training step with each combination of levers, in ms of wall time", spec, records(shown))


def _one_model(model: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of a model that have figures, with what the chart says of them."""
    steps = ok(with_gain(model))
    row = steps.iloc[0]
    return steps.assign(
        bar=_bar_names(list(steps["levers"])),
        rank=steps["levers"].map(rank),
        model=f"{row['size']}, context {row['context_length']}",
        part=[
            EAGER if levers == EAGER else "one lever" if levers in LEVERS else "several levers"
            for levers in steps["levers"]
        ],
        ladder=steps.index.isin(ladder(model).index),
        text=[f"{gain:.2f}×" for gain in steps["gain"]],
        peak_gb=steps["peak_bytes"] / 1e9 if "peak_bytes" in steps else None,
        levers=steps["levers"].map(joined),
    )


def _bar_names(combinations: Sequence[str]) -> list[str]:
    """Name combinations, those that add a lever to several others by that lever alone: `… + a CUDA graph`."""
    names = []
    for levers in combinations:
        others, _, last = levers.rpartition("+")
        adds_one = "+" in others and others in combinations
        names.append(f"… + {joined(last)}" if adds_one else joined(levers))
    return names if len(set(names)) == len(names) else list(map(joined, combinations))
