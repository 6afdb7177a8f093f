"""The figures of the attention section."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.report.figures import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILION,
    lengths_axis,
    log_values_axis,
    mark_outcomes,
    new_figure,
    quartile_line,
    save,
    shared_legend,
    stamp,
    values_from_zero,
)
from pipeline.report.table_rows import known, ok
from pipeline.stages.attention.cell import PHASES
from pipeline.stages.attention.report.findings import ELEMENT_BYTES
from pipeline.stages.attention.report.selection import (
    compile_gains,
    eager,
    main_head_dim,
    memory_of,
    named,
    problems,
    without_workspace,
)

LENGTH_LABEL = "sequence length"
# What is counted; the formulas of what eager attention should take have the same names.
QUANTITIES = {
    "saved for backward": "saved_bytes",
    "in use before backward": "before_backward_bytes",
    "peak": "peak_bytes",
}
MODE_FILLS = {"eager": None, "compiled": "white"}


def draw_all(rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up."""
    figures = {"times": times(rows), "compiled": compiled(rows), "memory": memory(rows)}
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/attention/{name}.svg" for name in drawn}


def times(rows: pd.DataFrame) -> Figure:
    """Draw eager times over length: a panel a pass, a line a head_dim; where memory ran out is marked."""
    grid = eager(rows).assign(name=eager(rows)["head_dim"].map(named))
    figure, panels = new_figure(1, len(PHASES), share_y=True)
    for axes, part in zip(panels[0], PHASES, strict=True):
        for name, line in grid[grid["phase"] == part].groupby("name", sort=False):
            quartile_line(axes, line, "seq_len", name)
        axes.set_title(f"eager, {part}")
        lengths_axis(axes, grid["seq_len"], LENGTH_LABEL)
        axes.tick_params(axis="x", labelrotation=30)
    log_values_axis(panels[0, 0], "one pass (ms)")
    for axes, part in zip(panels[0], PHASES, strict=True):
        mark_outcomes(axes, grid[grid["phase"] == part], "seq_len", "name")
    shared_legend(figure)
    stamp(figure, grid, *_facts(grid))
    return figure


def compiled(rows: pd.DataFrame) -> Figure | None:
    """Draw the eager time over the compiled: a panel a pass, a line a head_dim; None without any."""
    gains = compile_gains(rows)
    if ok(gains).empty:
        return None
    gains = gains.assign(name=gains["head_dim"].map(named))
    figure, panels = new_figure(1, len(PHASES), share_y=True)
    for axes, part in zip(panels[0], PHASES, strict=True):
        for name, line in gains[gains["phase"] == part].groupby("name", sort=False):
            quartile_line(axes, line, "seq_len", name, quantity="ratio")
        axes.axhline(1, color=BLACK, linewidth=1)
        axes.set_title(part)
        lengths_axis(axes, gains["seq_len"], LENGTH_LABEL)
        axes.tick_params(axis="x", labelrotation=30)
    panels[0, 0].set_ylabel("eager / compiled time")
    values_from_zero(panels[0, 0])
    shared_legend(figure)
    stamp(figure, ok(gains), *_facts(eager(rows)))
    return figure


def memory(rows: pd.DataFrame) -> Figure | None:
    """Draw bytes over length at one head_dim: the formulas as lines, what was measured as markers, and the limit.

    None where no row says what memory there is.
    """
    available = memory_of(rows)
    if available is None:
        return None
    head_dim = main_head_dim(rows)
    figure, panels = new_figure()
    axes = panels[0, 0]
    shapes = problems(rows, "eager")
    shapes = shapes[shapes["head_dim"] == head_dim]
    formulas = _formulas(available.device_type)
    for (quantity, column), colour in zip(QUANTITIES.items(), (BLUE, ORANGE, VERMILION), strict=True):
        _draw_formula(axes, shapes, quantity, formulas[column], colour)
        _draw_counted(axes, rows, head_dim, column, colour)
    for mode, fill in MODE_FILLS.items():
        axes.plot([], [], marker="o", linestyle="", color=BLACK, markerfacecolor=fill, label=f"counted, {mode}")
    axes.axhline(available.size_bytes / 1e9, color=BLACK, linewidth=1, linestyle="--", label="memory of the machine")
    lengths_axis(axes, shapes["seq_len"], LENGTH_LABEL)
    log_values_axis(axes, "memory (GB)")
    axes.set_title(f"{named(head_dim)}: formula (lines) and measured, without workspaces (markers)")
    mark_outcomes(axes, shapes, "seq_len", "mode")
    shared_legend(figure, per_row=3)
    stamp(figure, shapes.assign(n=1), *_facts(shapes), shown="memory of a single pass")
    return figure


def _formulas(device_type: str) -> dict[str, Callable[[Shape, int], int]]:
    return {
        "saved_bytes": attention.saved_bytes,
        "before_backward_bytes": attention.before_backward_bytes,
        "peak_bytes": functools.partial(attention.peak_bytes, device_type=device_type),
    }


def _draw_formula(axes: Axes, shapes: pd.DataFrame, quantity: str, count_bytes: Callable, colour: str) -> None:
    first = shapes.iloc[0]
    lengths = np.geomspace(shapes["seq_len"].min(), shapes["seq_len"].max(), 50).astype(int)
    batch_size, head_dim = int(first["setting_batch_size"]), int(first["head_dim"])
    counted = [count_bytes(Shape(batch_size, 1, length, head_dim, False), ELEMENT_BYTES) for length in lengths.tolist()]
    axes.plot(lengths, np.array(counted) / 1e9, color=colour, label=quantity)


def _draw_counted(axes: Axes, rows: pd.DataFrame, head_dim: int, column: str, colour: str) -> None:
    for mode, fill in MODE_FILLS.items():
        measured = known(without_workspace(problems(rows, mode)), column)
        measured = measured[measured["head_dim"] == head_dim]
        if len(measured):
            look = {"marker": "o", "linestyle": "", "color": colour, "markerfacecolor": fill or colour}
            axes.plot(measured["seq_len"], measured[column] / 1e9, **look)


def _facts(rows: pd.DataFrame) -> list[str]:
    return ["fp32", *(f"batch {size}" for size in sorted(rows["setting_batch_size"].unique()))]
