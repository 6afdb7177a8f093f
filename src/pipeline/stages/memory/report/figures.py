"""The figures of the memory section."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import (
    BLUE,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    SKY,
    VERMILION,
    mark_outcomes,
    names_axis,
    new_figure,
    save,
    shared_legend,
    stamp,
)
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report.selection import (
    CATEGORY_WORDS,
    COMPOSITION,
    MODE_WORDS,
    PREDICTED_COMPOSITION,
    Unit,
    cell_peaks,
    of_kind,
    plain,
    unit_for,
    variant,
)
from pipeline.stages.memory.report.trade import trade

# From the bottom up: what is always there first.
COLOURS = {
    "parameters": BLUE,
    "optimizer_state": GREEN,
    "gradients": VERMILION,
    "activations": ORANGE,
    "temporaries": SKY,
    "other": GREY,
}
ATTENTION_COLOURS = {"eager": GREY, "tiled": ORANGE, "flash": BLUE}
PREDICTED_HATCH = "///"
ROOM_FOR_PHASES = 1.45
ONE_RECORDING = "one recording a cell"


def draw_all(rows: pd.DataFrame, size: str, context_length: int, folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up."""
    rows = rows[rows["size"] == size]
    figures = {
        **{f"timeline_{mode}": timelines(rows, mode, context_length) for mode in MODE_WORDS},
        "peak_composition": peak_composition(rows),
        "trade": trade_off(rows),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/memory/{name}.svg" for name in drawn}


def timelines(rows: pd.DataFrame, mode: str, context_length: int) -> Figure | None:
    """Draw active memory by category over the allocator's events, a panel a precision; None without recordings."""
    rows = plain(rows)
    rows = rows[(rows["mode"] == mode) & (rows["context_length"] == context_length)]
    shown = of_kind(rows, "timeline")
    if shown.empty:
        return None
    figure, panels = new_figure(shown["precision"].nunique(), 1, panel_height_in=3.0, share_y=True)
    peaks = of_kind(rows, "peak")
    unit = unit_for(peaks["peak_bytes"].max())
    for axes, (precision, group) in zip(panels[:, 0], shown.groupby("precision", sort=False), strict=True):
        _stack_timeline(axes, group, unit)
        _mark_phases(axes, peaks[peaks["precision"] == precision])
        axes.set_title(precision, loc="left")
        axes.set_ylabel(f"active memory ({unit.name})")
        axes.margins(x=0)
    panels[0, 0].set_ylim(0, peaks["peak_bytes"].max() / unit.bytes * ROOM_FOR_PHASES)
    panels[-1, 0].set_xlabel("allocations and releases so far")
    shared_legend(figure, per_row=3)
    stamp(figure, shown.assign(n=1), MODE_WORDS[mode], f"context {context_length}", shown=ONE_RECORDING)
    return figure


def _stack_timeline(axes: Axes, group: pd.DataFrame, unit: Unit) -> None:
    series = {row["category"]: np.array(row["active_bytes"]) / unit.bytes for _, row in group.iterrows()}
    names = [name for name in COLOURS if name in series]
    axes.stackplot(
        group["events"].iloc[0],
        [series[name] for name in names],
        labels=[CATEGORY_WORDS[name] for name in names],
        colors=[COLOURS[name] for name in names],
        step="post",
        linewidth=0,
    )


def _mark_phases(axes: Axes, peaks: pd.DataFrame) -> None:
    """Draw a line where each phase begins and write its name along it, at the upper edge."""
    for _, phase in peaks.iterrows():
        axes.axvline(phase["begin_event"], color="black", linewidth=0.8)
        place = {"textcoords": "offset points", "xytext": (3, -3), "xycoords": ("data", "axes fraction")}
        axes.annotate(phase["phase"], (phase["begin_event"], 1), rotation=90, va="top", ha="left", fontsize=9, **place)


def peak_composition(rows: pd.DataFrame) -> Figure | None:
    """Draw what the peak is made of, measured beside predicted, by context: a row a mode, a column a precision."""
    peaks = cell_peaks(plain(rows))
    if ok(peaks).empty:
        return None
    modes, precisions = list(ok(peaks)["mode"].unique()), list(ok(peaks)["precision"].unique())
    figure, panels = new_figure(len(modes), len(precisions), panel_height_in=2.6, share_y=True)
    unit = unit_for(peaks["peak_bytes"].max())
    contexts = sorted(peaks["context_length"].unique())
    peaks = peaks.assign(position=peaks["context_length"].map(contexts.index))
    for line, mode in zip(panels, modes, strict=True):
        for axes, precision in zip(line, precisions, strict=True):
            panel = peaks[(peaks["mode"] == mode) & (peaks["precision"] == precision)]
            _stack_bars(axes, ok(panel), COMPOSITION, -0.2, unit, hatch=None)
            _stack_bars(axes, ok(panel), PREDICTED_COMPOSITION, 0.2, unit, hatch=PREDICTED_HATCH)
            axes.set_title(f"{MODE_WORDS[mode]}, {precision}")
            names_axis(axes, [str(length) for length in contexts], "")
            axes.grid(axis="x", visible=False)
        line[0].set_ylabel(f"peak ({unit.name})")
    for axes in panels[-1]:
        axes.set_xlabel("context length (tokens)")
    # The panels share their limits, which are known once all are drawn.
    for line, mode in zip(panels, modes, strict=True):
        for axes, precision in zip(line, precisions, strict=True):
            panel = peaks[(peaks["mode"] == mode) & (peaks["precision"] == precision)]
            mark_outcomes(axes, panel, "position", "precision")
    # An entry for the legend, of no height.
    axes.bar(0, 0, color="white", edgecolor="black", hatch=PREDICTED_HATCH, label="predicted")
    shared_legend(figure, per_row=4)
    stamp(figure, ok(peaks).assign(n=1), shown=f"left bar measured, {ONE_RECORDING}; right bar predicted")
    return figure


def _stack_bars(
    axes: Axes, peaks: pd.DataFrame, columns: list[str], shift: float, unit: Unit, hatch: str | None
) -> None:
    by_category = dict(zip(CATEGORY_WORDS, columns, strict=True))
    bottom = np.zeros(len(peaks))
    for name, colour in COLOURS.items():
        heights = peaks[by_category[name]].to_numpy(dtype=float) / unit.bytes
        axes.bar(
            peaks["position"] + shift,
            heights,
            width=0.36,
            bottom=bottom,
            color=colour,
            hatch=hatch,
            edgecolor="white" if hatch else colour,
            linewidth=0,
            label=None if hatch else CATEGORY_WORDS[name],
        )
        bottom += heights


def trade_off(rows: pd.DataFrame) -> Figure | None:
    """Draw peak memory against step time, a point a variant of attention and checkpointing; None without variants.

    A panel a precision and context length, two in a row.
    """
    table = trade(rows)
    if table.empty or table["median_ms"].isna().all():
        return None
    table = table[table["median_ms"].notna()]
    settings = list(table.groupby(["precision", "context_length"], sort=False))
    columns = min(2, len(settings))
    figure, panels = new_figure(-(-len(settings) // columns), columns, panel_height_in=3.0)
    unit = unit_for(table["peak_bytes"].max())
    for axes, ((precision, context_length), group) in zip(panels.flat, settings, strict=False):
        _scatter_variants(axes, group, sorted(table["checkpoint_every"].unique()), unit)
        axes.set_title(f"{precision}, context {context_length}")
        axes.set_xlabel("training step (ms)")
        axes.set_ylabel(f"peak ({unit.name})")
    for axes in panels.flat[len(settings) :]:
        axes.set_axis_off()
    shared_legend(figure, per_row=2)
    stamp(figure, table.assign(n=1), shown=f"{ONE_RECORDING}; median step time")
    return figure


def _scatter_variants(axes: Axes, table: pd.DataFrame, intervals: list[int], unit: Unit) -> None:
    """Draw a point a variant: its colour is the attention's, its marker the checkpoints'."""
    for _, row in table.iterrows():
        look = {
            "color": ATTENTION_COLOURS[row["attention"]],
            "marker": MARKERS[intervals.index(row["checkpoint_every"])],
            "linestyle": "",
            "markersize": 9,
        }
        name = variant(row["attention"], row["checkpoint_every"])
        axes.plot([row["median_ms"]], [row["peak_bytes"] / unit.bytes], label=name, **look)
    axes.set_xlim(0, table["median_ms"].max() * 1.15)
    axes.set_ylim(0, table["peak_bytes"].max() / unit.bytes * 1.15)
