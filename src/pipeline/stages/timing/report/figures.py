"""The figures of the timing section."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import (
    lengths_axis,
    log_values_axis,
    mark_outcomes,
    names_axis,
    new_figure,
    quartile_line,
    save,
    shared_legend,
    stamp,
    style_for,
    values_from_zero,
)
from pipeline.report.table_rows import ok
from pipeline.stages.timing.report import selection
from pipeline.stages.timing.report.compile_findings import compile_gains
from pipeline.stages.timing.report.findings import gains_over_fp32
from pipeline.stages.timing.report.selection import FIRST_STEPS, at_context, host, main_context, main_grid


def draw_all(rows: pd.DataFrame, context_length: int, folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up."""
    figures = {
        "step_time": step_time(rows),
        "precision_gain": precision_gain(rows),
        "first_steps": first_steps(rows),
        "compiled": compiled(rows),
        "mfu": mfu(rows, context_length),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/timing/{name}.svg" for name in drawn}


def step_time(rows: pd.DataFrame) -> Figure:
    """Draw the train step over context length: a panel a precision, a line a size."""
    grid = host(main_grid(rows)).query("`phase` == 'train_step'")
    precisions = list(ok(grid)["precision"].unique())
    figure, panels = new_figure(1, len(precisions), share_y=True)
    for axes, precision in zip(panels[0], precisions, strict=True):
        panel = grid[grid["precision"] == precision]
        for size, line in panel.groupby("size", sort=False):
            quartile_line(axes, line, "context_length", size)
        axes.set_title(precision)
        lengths_axis(axes, grid["context_length"], "context length (tokens)")
    log_values_axis(panels[0, 0], "train step (ms)")
    for axes, precision in zip(panels[0], precisions, strict=True):
        mark_outcomes(axes, grid[grid["precision"] == precision], "context_length", "size")
    shared_legend(figure)
    stamp(figure, grid)
    return figure


def precision_gain(rows: pd.DataFrame) -> Figure | None:
    """Draw the fp32 time of a train step over that of each other precision; None without such a ratio."""
    gains = gains_over_fp32(rows)
    if gains.empty or ok(gains).empty:
        return None
    gains = gains.query("`phase` == 'train_step'")
    precisions = list(gains["precision"].unique())
    figure, panels = new_figure(1, len(precisions), share_y=True)
    for axes, precision in zip(panels[0], precisions, strict=True):
        for size, line in gains[gains["precision"] == precision].groupby("size", sort=False):
            quartile_line(axes, line, "context_length", size, quantity="ratio")
        axes.axhline(1, color="black", linewidth=1)
        axes.set_title(f"fp32 / {precision}")
        lengths_axis(axes, gains["context_length"], "context length (tokens)")
    values_from_zero(panels[0, 0])
    panels[0, 0].set_ylabel("time ratio of a train step")
    for axes, precision in zip(panels[0], precisions, strict=True):
        mark_outcomes(axes, gains[gains["precision"] == precision], "context_length", "size")
    shared_legend(figure)
    stamp(figure, host(main_grid(rows)))
    return figure


def first_steps(rows: pd.DataFrame) -> Figure | None:
    """Draw the first steps after no and after the longest warm-up, over the warm median; None without them."""
    steps = selection.first_steps(rows)
    if steps.empty:
        return None
    longest = steps["warmup_steps"].max()
    figure, panels = new_figure(1, 2, share_y=True)
    titles = {0: "no warm-up", longest: f"after {longest} warm-up steps"}
    for axes, (count, title) in zip(panels[0], titles.items(), strict=True):
        for size, line in steps[steps["warmup_steps"] == count].groupby("size", sort=False):
            axes.plot(line["step"], line["relative"], label=size, **style_for(size))
        axes.set_title(title)
        axes.set_xlabel("measured step")
        axes.set_xticks(range(1, FIRST_STEPS + 1))
    log_values_axis(panels[0, 0], "step time / warm median")
    shared_legend(figure)
    shown = steps.assign(n=steps["step"].max())
    stamp(figure, shown, steps["precision"].iloc[0], f"context {steps['context_length'].iloc[0]}", shown="single steps")
    return figure


def compiled(rows: pd.DataFrame) -> Figure | None:
    """Draw eager beside compiled by size, forward and train step, a row a precision; None without both."""
    longest = host(rows)[host(rows)["warmup_steps"] == rows["warmup_steps"].max()]
    tried = longest[longest["mode"] == "compiled"]
    if ok(compile_gains(rows)).empty:
        return None
    precisions = list(ok(tried)["precision"].unique())
    context_length = main_context(tried)
    shown = at_context(longest, context_length)
    parts = ("forward", "train_step")
    sizes = list(at_context(tried, context_length)["size"].unique())
    shown = shown[shown["size"].isin(sizes) & shown["phase"].isin(parts)]
    shown = shown.assign(position=shown["size"].map(sizes.index))
    figure, panels = new_figure(len(precisions), 2, panel_height_in=2.7)
    for line, precision in zip(panels, precisions, strict=True):
        for axes, part in zip(line, parts, strict=True):
            panel = shown[(shown["precision"] == precision) & (shown["phase"] == part)]
            for mode, points in panel.groupby("mode", sort=False):
                quartile_line(axes, points, "position", mode)
            axes.set_title(f"{part.replace('_', ' ')}, {precision}")
            names_axis(axes, sizes, "")
            log_values_axis(axes, "time (ms)")
            mark_outcomes(axes, panel, "position", "mode")
    shared_legend(figure)
    stamp(figure, shown, f"context {context_length}")
    return figure


def mfu(rows: pd.DataFrame, context_length: int) -> Figure | None:
    """Draw the MFU of the train step by size, a line a precision; None where no peak is known."""
    grid = at_context(host(main_grid(rows)), context_length).query("`phase` == 'train_step'")
    precisions = list(grid.loc[grid["mfu_pct"].notna(), "precision"].unique())
    grid = grid[grid["precision"].isin(precisions)]
    if grid.empty:
        return None
    sizes = list(grid["size"].unique())
    grid = grid.assign(
        position=grid["size"].map(sizes.index),
        median_mfu=grid["mfu_pct"],
        q1_mfu=grid["mfu_pct"] * grid["median_ms"] / grid["q3_ms"],
        q3_mfu=grid["mfu_pct"] * grid["median_ms"] / grid["q1_ms"],
    )
    figure, panels = new_figure(1, 1)
    axes = panels[0, 0]
    for precision, line in grid.groupby("precision", sort=False):
        quartile_line(axes, line, "position", precision, quantity="mfu")
    names_axis(axes, sizes, "model size")
    values_from_zero(axes)
    axes.set_ylabel("MFU of a train step (%)")
    mark_outcomes(axes, grid, "position", "precision")
    shared_legend(figure)
    stamp(figure, grid, f"context {context_length}")
    return figure
