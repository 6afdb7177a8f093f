"""The figures of the allreduce section."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import (
    BLACK,
    lengths_axis,
    log_values_axis,
    new_figure,
    quartile_line,
    save,
    shared_legend,
    stamp,
)
from pipeline.report.table_rows import ok
from pipeline.stages.allreduce.report.selection import bursts, calls, fits, most_ranks, singles

WAYS = {
    "burst, torch": ("burst", "torch", "in_place"),
    "burst, NCCL in place": ("burst", "nccl", "in_place"),
    "burst, NCCL out of place": ("burst", "nccl", "out_of_place"),
}
CLOCKS = {"single, events": "cuda_events", "single, host clock": "host"}


def draw_all(rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Draw every figure; give the links by figure name, relative to the write-up."""
    drawn = {"time": time(rows), "busbw": busbw(rows), "ways": ways(rows)}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/allreduce/{name}.svg" for name in drawn}


def time(rows: pd.DataFrame) -> Figure:
    """Draw the time in a burst over size, a panel a backend and a line a world size, and the fits dotted."""
    shown, lines = bursts(ok(rows)), fits(rows)
    figure, panels = _panels(shown)
    for axes, (backend, panel) in zip(panels[0], shown.groupby("backend", sort=False), strict=True):
        for ranks, line in panel.groupby("ranks", sort=False):
            quartile_line(axes, line, "size_mb", ranks)
        _draw_fits(axes, panel, lines)
        axes.set_title(backend)
        _sizes_axis(axes, panel)
        log_values_axis(axes, "time of an all-reduce (ms)")
    shared_legend(figure)
    stamp(figure, shown, "torch, in place, bursts")
    return figure


def _draw_fits(axes: Axes, panel: pd.DataFrame, lines: pd.DataFrame) -> None:
    if lines.empty:
        return
    lines = lines[(lines["timing"] == "burst") & (lines["backend"] == panel["backend"].iloc[0])]
    sizes_mb = np.geomspace(panel["size_mb"].min(), panel["size_mb"].max())
    for cost in lines["cost"]:
        times_ms = [cost.seconds(size * 1e6) * 1e3 for size in sizes_mb]
        axes.plot(sizes_mb, times_ms, color=BLACK, linewidth=1, linestyle=":", zorder=3, label="fit")


def busbw(rows: pd.DataFrame) -> Figure:
    """Draw the bus bandwidth in a burst over size, a panel a backend and a line a world size."""
    shown = bursts(ok(rows)).pipe(_with_bandwidth)
    figure, panels = _panels(shown)
    for axes, (backend, panel) in zip(panels[0], shown.groupby("backend", sort=False), strict=True):
        for ranks, line in panel.groupby("ranks", sort=False):
            quartile_line(axes, line, "size_mb", ranks, quantity="busbw")
        axes.set_title(backend)
        _sizes_axis(axes, panel)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth (GB/s)")
    shared_legend(figure)
    stamp(figure, shown, "torch, in place, bursts")
    return figure


def ways(rows: pd.DataFrame) -> Figure:
    """Draw the bus bandwidth of bursts and single calls with the most ranks, a panel a backend."""
    found = _with_bandwidth(most_ranks(ok(rows)))
    lines = {name: calls(found, *way) for name, way in WAYS.items()}
    lines |= {name: singles(found, clock) for name, clock in CLOCKS.items()}
    figure, panels = _panels(bursts(found))
    for axes, (backend, panel) in zip(panels[0], bursts(found).groupby("backend", sort=False), strict=True):
        for name, line in lines.items():
            if not (here := line[line["backend"] == backend]).empty:
                quartile_line(axes, here, "size_mb", name, quantity="busbw")
        axes.set_title(f"{backend}, {panel['ranks'].iloc[0]}")
        _sizes_axis(axes, panel)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("bus bandwidth (GB/s)")
    shared_legend(figure, per_row=3)
    stamp(figure, pd.concat(lines.values()))
    return figure


def _sizes_axis(axes: Axes, panel: pd.DataFrame) -> None:
    sizes = panel["size_mb"].unique()
    lengths_axis(axes, [int(size) if size.is_integer() else size for size in sizes], "size (MB of $10^6$ bytes)")


def _panels(shown: pd.DataFrame) -> tuple[Figure, np.ndarray]:
    return new_figure(1, shown["backend"].nunique())


def _with_bandwidth(rows: pd.DataFrame) -> pd.DataFrame:
    """Add median, q1 and q3 of the bus bandwidth: the quartiles of the time, the other way round."""
    bytes_ms = rows["busbw_gb_per_s"] * rows["median_ms"]
    return rows.assign(
        median_busbw=rows["busbw_gb_per_s"], q1_busbw=bytes_ms / rows["q3_ms"], q3_busbw=bytes_ms / rows["q1_ms"]
    )
