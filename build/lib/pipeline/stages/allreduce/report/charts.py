"""The interactive chart of the allreduce section: bus bandwidth over size, with the link's."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from pipeline.report.charts import DASHED, POINTS, Chart, axis, colours, mark, picked, picker, quartiles
from pipeline.report.table_rows import records, with_rate_quartiles
from pipeline.stages.allreduce.report.facts import groups, link_gb_per_s


def charts(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> list[Chart]:
    """Return the charts of the stage, from all its rows and, for the link's rate, those of the ceilings beside them."""
    measured = groups(rows)
    if not measured:
        return []
    bursts = pd.concat([group.bursts for group in measured])
    return [_busbw(bursts, link_gb_per_s(beside))]


def _busbw(bursts: pd.DataFrame, link_gb_per_s: float | None) -> Chart:
    """Draw busbw over size, one line per number of ranks and nodes; its range is that of the quartiles of the time."""
    drawn = with_rate_quartiles(bursts, "busbw_gb_per_s").reindex(
        columns=[
            *("backend", "ranks", "size", "size_mb", "busbw_gb_per_s", "q1_busbw_gb_per_s", "q3_busbw_gb_per_s"),
            *("algbw_gb_per_s", "status", "median_ms", "q1_ms", "q3_ms"),
        ]
    )
    ranks = list(bursts.sort_values(["nodes", "world_size"])["ranks"].unique())
    backends = list(drawn["backend"].unique())
    colour = colours("ranks", ranks)
    x = axis("size_mb", "size (MB of 10⁶ bytes)", log=True)
    y = axis("busbw_gb_per_s", "bus bandwidth (GB/s)")
    told = quartiles(
        backend="backend",
        ranks="ranks",
        size="size",
        busbw_gb_per_s="busbw (GB/s)",
        algbw_gb_per_s="algbw (GB/s)",
        status="status",
    )
    low_high = {"y": {**y, "field": "q1_busbw_gb_per_s"}, "y2": {"field": "q3_busbw_gb_per_s"}}
    layers: list[dict[str, Any]] = [
        mark("line", x=x, y=y, color=colour),
        mark("rule", x=x, color=colour, **low_high),
        mark("point", {**POINTS, "opacity": 1}, x=x, y=y, color=colour, tooltip=told),
    ]
    if link_gb_per_s:
        link = [{"field": "gb_per_s", "title": "GPU to GPU, copy (GB/s)"}]
        values = [{"gb_per_s": link_gb_per_s, "backend": "nccl"}]
        layers.append({"data": {"values": values}, **mark("rule", DASHED, y=axis("gb_per_s", ""), tooltip=link)})
    spec = {
        "params": [picker("backend", "backend", backends, backends[0])],
        "height": 300,
        "layer": [{"transform": picked(backend="backend"), **layer} for layer in layers],
    }
    title = "Bus bandwidth of an all-reduce over size, by backend and ranks"
    return Chart("busbw", title, spec, records(drawn))
