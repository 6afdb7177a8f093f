"""The interactive chart of the flash section: rates at the shapes of real models, ours beside chosen peers."""

import pandas as pd

from pipeline.report.charts import (
    BAR_STEP_PX,
    DASHED,
    Chart,
    axis,
    bars_axis,
    colours,
    mark,
    picked,
    picker,
    quartiles,
    records,
)
from pipeline.report.table_rows import has_figures, known, ok
from pipeline.report.tables import number_cells
from pipeline.stages.flash.cell import OURS
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    IMPLS,
    WORDS,
    fastest,
    ordered,
    ours,
    several_heads,
    shape_label,
)

ALL, FASTEST = "all peers", "the fastest peer"
PHASE_WORDS = {"forward": "forward", "backward": "backward", BOTH_PHASES: "forward + backward"}


def charts(rows: pd.DataFrame) -> list[Chart]:
    """Return the charts of the stage, from all its rows."""
    rows = several_heads(ordered(rows))
    return [] if ok(rows).empty or ours(rows) is None else [_rates(rows)]


def _rates(rows: pd.DataFrame) -> Chart:
    """Draw TFLOP/s, a group of bars a shape, one bar per implementation; a chosen peer stands beside ours alone."""
    mine = ours(rows)
    rows = rows[rows["impl"].isin(ok(rows)["impl"]) & ((rows["impl"] == mine) | ~rows["impl"].isin(OURS))]
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
        ]
    )
    peaks = known(drawn, "peak_tflops_per_s").drop_duplicates("dtype")
    dtypes = list(drawn["dtype"].unique())
    y = bars_axis("shape", list(drawn["shape"]))
    lane = {"field": "impl", "sort": impls, "scale": {"paddingInner": 0.12}}
    told = quartiles(
        words="implementation",
        shape="batch×heads×length×head_dim",
        rate="TFLOP/s",
        peak_share_pct="share of the peak (%)",
        extra_mb="memory beside the inputs (MB)",
        status="status",
    )
    words = {"peak_tflops_per_s": "peak (TFLOP/s)", "peak_of": "of", "peak_source": "source"}
    of_peak = [{"field": name, "title": title} for name, title in words.items()]
    bars = mark(
        "bar", y=y, yOffset=lane, x=axis("rate", "TFLOP/s"), color=colours("impl", impls, legend=False), tooltip=told
    )
    small = {"align": "left", "dx": 4, "fontSize": 10}
    labels = mark("text", small, y=y, yOffset=lane, x=axis("rate", ""), text={"field": "text"})
    spec = {
        "params": [
            picker("dtype", "data type", dtypes, dtypes[0]),
            picker("what", "phase", list(drawn["what"].unique()), PHASE_WORDS[BOTH_PHASES]),
            picker("peer", f"{mine} beside", [ALL, FASTEST, *peers], ALL),
        ],
        "height": {"step": BAR_STEP_PX, "for": "offset"},
        "layer": [
            *({"transform": _chosen(mine), **layer} for layer in (bars, labels)),
            {
                "data": {"values": records(peaks[["dtype", *words]])},
                "transform": picked(dtype="dtype"),
                **mark("rule", DASHED, x=axis("peak_tflops_per_s", ""), tooltip=of_peak),
            },
        ],
    }
    title = "Attention at the shapes of real models, batch×heads×length×head_dim; dashed: the peak"
    return Chart("rates", title, spec, records(drawn))


def _chosen(mine: str) -> list[dict[str, str]]:
    """Keep the chosen data type and phase, of them ours and the chosen peer."""
    chosen = f"peer === '{ALL}' || peer === datum.impl || (peer === '{FASTEST}' && datum.is_fastest)"
    return [*picked(dtype="dtype", what="what"), {"filter": f"datum.impl === '{mine}' || {chosen}"}]
