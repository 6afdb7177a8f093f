"""The interactive chart of the allreduce section: bus bandwidth over size, with the link's."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.charts import Chart, axis, colours, picked, picker, quartiles, records
from pipeline.stages.allreduce.report.facts import groups, link_gb_per_s


def charts(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame] | None = None) -> list[Chart]:
    """Return the charts of the stage, from all its rows and, for the link's rate, those of the ceilings beside them."""
    measured = groups(rows)
    if not measured:
        return []
    bursts = pd.concat([group.bursts for group in measured])
    return [_busbw(bursts, link_gb_per_s(beside))]


def _busbw(bursts: pd.DataFrame, link_gb_per_s: float | None) -> Chart:
    """Draw busbw over size, a line a number of ranks; its range is that of the quartiles of the time."""
    work = bursts["busbw_gb_per_s"] * bursts["median_ms"]
    drawn = bursts.assign(
        ranks=bursts["world_size"].astype(str) + " ranks",
        low=work / bursts["q3_ms"],
        high=work / bursts["q1_ms"],
    ).reindex(
        columns=[
            *("backend", "ranks", "size", "size_mb", "busbw_gb_per_s", "algbw_gb_per_s", "low", "high"),
            *("status", "median_ms", "q1_ms", "q3_ms"),
        ]
    )
    ranks = sorted(drawn["ranks"].unique(), key=lambda words: int(words.split()[0]))
    backends = list(drawn["backend"].unique())
    colour = {"field": "ranks", **colours(ranks)}
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
    layers = [
        {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, "color": colour}},
        {
            "mark": {"type": "rule"},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": told},
        },
    ]
    if link_gb_per_s:
        layers.append(
            {
                "data": {"values": [{"gb_per_s": link_gb_per_s, "backend": "nccl"}]},
                "transform": picked(backend="backend"),
                "mark": {"type": "rule", "strokeDash": [4, 4]},
                "encoding": {
                    "y": axis("gb_per_s", ""),
                    "tooltip": [{"field": "gb_per_s", "title": "GPU to GPU, copy (GB/s)"}],
                },
            }
        )
    spec = {
        "params": [picker("backend", "backend", backends, backends[0])],
        "height": 300,
        "layer": [{"transform": picked(backend="backend"), **layer} for layer in layers],
    }
    title = "Bus bandwidth of an all-reduce over size, by backend and ranks"
    return Chart("busbw", title, spec, records(drawn))
