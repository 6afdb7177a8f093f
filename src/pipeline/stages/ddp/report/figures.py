"""The figures of the ddp section."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import lengths_axis, new_figure, save, shared_legend, stamp, style_for
from pipeline.report.table_rows import has_figures, ok
from pipeline.report.tables import OUTCOME_WORDS
from pipeline.stages.ddp.cell import CAPTURED, PHASES
from pipeline.stages.ddp.report.findings import overheads
from pipeline.stages.ddp.report.selection import captures, medians, steps

LANES = ("computation", "communication")
LANE_HEIGHT = 0.8


def draw_all(rows: pd.DataFrame, models: dict[str, pd.DataFrame], folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up.

    models: by cell, the table of modelled and measured overheads, where there is one.
    """
    figures = {"steps": step_parts(rows), "buckets": bucket_sweep(rows, models), "timeline": timeline(rows)}
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/ddp/{name}.svg" for name in drawn}


def step_parts(rows: pd.DataFrame) -> Figure:
    """Draw each variant's step as a bar of its phases, with the whole step's median and quartiles: a panel a cell."""
    cells = _measured_cells(rows)
    figure, panels = new_figure(len(cells), 1, panel_height_in=4.0)
    for axes, (name, cell) in zip(panels[:, 0], cells.items(), strict=True):
        whole = steps(cell).set_index("variant")
        places = {variant: place for place, variant in enumerate(whole.index)}
        _phase_bars(axes, medians(cell), places)
        found = ok(whole)
        spread = [found["median_ms"] - found["q1_ms"], found["q3_ms"] - found["median_ms"]]
        at = [places[variant] for variant in found.index]
        look = {"fmt": "D", "color": "black", "capsize": 3, "markersize": 4}
        axes.errorbar(found["median_ms"], at, xerr=spread, label="whole step", **look)
        for variant, status in whole.loc[~has_figures(whole["status"]), "status"].items():
            axes.text(0, places[variant], f" {OUTCOME_WORDS[status]}", va="center")
        axes.set_yticks(list(places.values()), list(places))
        axes.invert_yaxis()
        axes.set_xlabel("time (ms)")
        axes.set_title(name)
    shared_legend(figure)
    stamp(figure, ok(steps(rows)))
    return figure


def _phase_bars(axes: Axes, times: pd.DataFrame, places: dict[str, int]) -> None:
    left = pd.Series(0.0, index=times.index)
    at = [places[variant] for variant in times.index]
    for phase in PHASES:
        widths = times[phase].fillna(0)
        axes.barh(at, widths, left=left, height=0.6, color=style_for(phase)["color"], label=phase)
        left = left + widths


def bucket_sweep(rows: pd.DataFrame, models: dict[str, pd.DataFrame]) -> Figure | None:
    """Draw what a step takes beyond one without communication over the bucket size: ours, torch's and the model."""
    cells = {name: cell for name, cell in _measured_cells(rows).items() if not _overhead_lines(cell).empty}
    if not cells:
        return None
    figure, panels = new_figure(1, len(cells), panel_height_in=3.8)
    for axes, (name, cell) in zip(panels[0], cells.items(), strict=True):
        lines = _overhead_lines(cell)
        with_buckets = lines[lines["bucket_size_mb"].notna()]
        for impl, line in with_buckets.groupby("impl", sort=False):
            spread = [line["beyond_ms"] - line["low_ms"], line["high_ms"] - line["beyond_ms"]]
            axes.errorbar(
                line["bucket_size_mb"], line["beyond_ms"], yerr=spread, label=impl, capsize=3, **style_for(impl)
            )
        for impl, beyond_ms in lines[lines["bucket_size_mb"].isna()].set_index("impl")["beyond_ms"].items():
            axes.axhline(beyond_ms, label=impl, color=style_for(impl)["color"], linestyle=":", linewidth=1.4)
        if name in models:
            _model_line(axes, models[name])
        axes.set_title(name)
        lengths_axis(axes, with_buckets["bucket_size_mb"].astype(int), "bucket size (MB)")
    panels[0, 0].set_ylabel("step beyond no communication (ms)")
    shared_legend(figure, per_row=4)
    stamp(figure, ok(steps(rows)))
    return figure


def _overhead_lines(cell: pd.DataFrame) -> pd.DataFrame:
    """Give the overhead of each variant that communicates, and what the quartiles of its own step allow."""
    whole = ok(steps(cell)).set_index("variant")
    beyond = overheads(whole)
    if beyond.empty:
        return pd.DataFrame()
    base_ms = whole.loc["no communication", "median_ms"]
    lines = whole.loc[beyond.index]
    return lines.assign(beyond_ms=beyond, low_ms=lines["q1_ms"] - base_ms, high_ms=lines["q3_ms"] - base_ms)


def _model_line(axes: Axes, model: pd.DataFrame) -> None:
    looks = {"equal_ms": ("model: equal times", "--"), "pipelined_ms": ("model: measured backward", "-.")}
    for column, (words, line) in looks.items():
        axes.plot(model["bucket_size_mb"], model[column], color="black", linestyle=line, linewidth=1.2, label=words)


def timeline(rows: pd.DataFrame) -> Figure | None:
    """Draw one captured step of the naive and of the overlapped variant, a lane of computation and one of transfers.

    The height of a lane is the share of each moment in which it ran.
    """
    found = captures(ok(rows))
    found = found[found["variant"].isin(CAPTURED) & found["communication_ms"].gt(0)]
    found = found.dropna(subset=[f"{lane}_busy_pct" for lane in LANES])
    if found.empty:
        return None
    figure, panels = new_figure(len(found), 1, panel_height_in=1.5)
    for axes, (_, capture) in zip(panels[:, 0], found.iterrows(), strict=True):
        for height, lane in enumerate(reversed(LANES)):
            busy = np.array(capture[f"{lane}_busy_pct"]) / 100
            edges_ms = np.linspace(0, capture["span_ms"], len(busy) + 1)
            axes.stairs(
                height + LANE_HEIGHT * busy, edges_ms, baseline=height, fill=True, color=style_for(lane)["color"]
            )
        axes.set_yticks(np.arange(len(LANES)) + LANE_HEIGHT / 2, reversed(LANES))
        axes.set_xlim(0, found.loc[found["cell_name"] == capture["cell_name"], "span_ms"].max())
        axes.grid(axis="y", visible=False)
        axes.set_title(f"{capture['cell_name']}: {capture['variant']}", loc="left")
    panels[-1, 0].set_xlabel("time in the step (ms)")
    stamp(figure, found.assign(n=1), *found["clock"].unique(), shown="one step of rank 0")
    return figure


def _measured_cells(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    cells = rows.groupby("cell_name", sort=False)
    return {name: cell for name, cell in cells if not ok(steps(cell)).empty}
