"""The interactive chart of the flash section: rates at the shapes of real models, ours beside chosen peers."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.charts import (
    BAR_STEP_PX,
    DASHED,
    DOTTED,
    Chart,
    axis,
    bars_axis,
    colours,
    mark,
    picked,
    picker,
    quartiles,
    tooltip,
)
from pipeline.report.table_rows import has_figures, known, ok, records
from pipeline.report.tables import number_cells
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    IMPLS,
    WORDS,
    compared,
    fastest,
    ordered,
    ours,
    products_tflops_per_s,
    rate_below_peak,
    several_heads,
    shape_label,
)

ALL, FASTEST = "all peers", "the fastest peer"
PHASE_WORDS = {"forward": "forward", "backward": "backward", BOTH_PHASES: "forward + backward"}


def charts(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> list[Chart]:
    """Return the charts of the stage, from all its rows; beside: those of the stage ceilings."""
    rows = several_heads(ordered(rows))
    mine = ours(rows)
    return [] if mine is None else [_rates(rows, mine, products_tflops_per_s(beside))]


def _rates(rows: pd.DataFrame, mine: str, products: Mapping[str, float]) -> Chart:
    """Draw TFLOP/s, a group of bars a shape, one bar per implementation; a chosen peer stands beside ours alone."""
    rows = compared(rows)
    rows = rows[rows["impl"].isin(ok(rows)["impl"])]
    impls = [impl for impl in IMPLS if impl in set(rows["impl"])]
    peers = [impl for impl in impls if impl != mine]
    drawn = rows.assign(
        shape=[shape_label(row) for _, row in rows.iterrows()],
        what=rows["phase"].map(PHASE_WORDS),
        words=rows["impl"].map(WORDS),
        is_fastest=rows.index.isin(fastest(rows[rows["impl"] != mine]).index),
        rate=rows["tflops_per_s"].where(has_figures(rows["status"]), 0),
        text=number_cells(rows.assign(reason=None), "tflops_per_s") + " " + rows["impl"],
        extra_mb=rows["extra_bytes"] / 1e6,
    )
    drawn = drawn.reindex(
        columns=[
            *("dtype", "what", "shape", "impl", "words", "is_fastest", "rate", "text", "status", "extra_mb"),
            *("median_ms", "q1_ms", "q3_ms", "peak_share_pct", "peak_tflops_per_s", "peak_of", "peak_source"),
            "sustained_tflops_per_s",
        ]
    )
    peaks = known(drawn, "peak_tflops_per_s").drop_duplicates("dtype")
    peaks = peaks.assign(product_rate=[rate_below_peak(row, products) for _, row in peaks.iterrows()])
    dtypes = list(drawn["dtype"].unique())
    y = bars_axis("shape", list(drawn["shape"]))
    lane = {"field": "impl", "sort": impls, "scale": {"paddingInner": 0.12}}
    told = quartiles(
        words="implementation",
        shape="batch×heads×length×head_dim",
        rate="TFLOP/s",
        peak_share_pct="share of the peak (%)",
        sustained_tflops_per_s="back to back (TFLOP/s)",
        extra_mb="memory beside the inputs (MB)",
        status="status",
    )
    words = {"peak_tflops_per_s": "peak (TFLOP/s)", "peak_of": "of", "peak_source": "source"}
    of_peak = [{"field": name, "title": title} for name, title in words.items()]
    of_product = tooltip(product_rate="a matrix product alone (TFLOP/s)")
    bars = mark(
        "bar", y=y, yOffset=lane, x=axis("rate", "TFLOP/s"), color=colours("impl", impls, legend=False), tooltip=told
    )
    small = {"align": "left", "dx": 4, "fontSize": 10}
    labels = mark("text", small, y=y, yOffset=lane, x=axis("rate", ""), text={"field": "text"})
    lines = [_line(peaks[["dtype", *words]], "peak_tflops_per_s", DASHED, of_peak)]
    below = known(peaks, "product_rate")[["dtype", "product_rate"]]
    if len(below):
        lines.append(_line(below, "product_rate", DOTTED, of_product))
    spec = {
        "params": [
            picker("dtype", "data type", dtypes, dtypes[0]),
            picker("what", "phase", list(drawn["what"].unique()), PHASE_WORDS[BOTH_PHASES]),
            picker("peer", f"{mine} beside", [ALL, FASTEST, *peers], ALL),
        ],
        "height": {"step": BAR_STEP_PX, "for": "offset"},
        "layer": [
            *({"transform": _chosen(mine), **layer} for layer in (bars, labels)),
            *lines,
        ],
    }
    dotted = "; dotted: a matrix product alone" if len(below) else ""
    title = f"Attention at the shapes of real models, batch×heads×length×head_dim; dashed: the peak{dotted}"
    return Chart("rates", title, spec, records(drawn))


def _line(rates: pd.DataFrame, field: str, look: Mapping[str, Any], told: list[dict[str, str]]) -> dict[str, Any]:
    """Return the layer of a line at the chosen data type's rate."""
    return {
        "data": {"values": records(rates)},
        "transform": picked(dtype="dtype"),
        **mark("rule", look, x=axis(field, ""), tooltip=told),
    }


def _chosen(mine: str) -> list[dict[str, str]]:
    """Keep the chosen data type and phase, of them ours and the chosen peer."""
    chosen = f"peer === '{ALL}' || peer === datum.impl || (peer === '{FASTEST}' && datum.is_fastest)"
    return [*picked(dtype="dtype", what="what"), {"filter": f"datum.impl === '{mine}' || {chosen}"}]
