"""The figures of the precision section."""

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import log_values_axis, new_figure, save, shared_legend, stamp, style_for
from pipeline.stages.precision.report.accumulation_findings import label
from pipeline.stages.precision.report.layer_norm_findings import METHOD_WORDS, STATISTICS_METHODS
from pipeline.stages.precision.report.selection import shown
from pipeline.stages.precision.roundoff import FORMATS

MARKER_EVERY = 25
MAGNITUDE_TICKS = range(-16, 80, 16)


def draw_all(rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up."""
    figures = {
        "accumulation": accumulation(shown(rows, "accumulation")),
        "variance": variance(shown(rows, "layer_norm")),
        "output": output(shown(rows, "layer_norm")),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/precision/{name}.svg" for name in drawn}


def accumulation(sums: pd.DataFrame) -> Figure | None:
    """Draw running sums and their relative errors over the steps, a column a sum, with predicted stalls."""
    if sums.empty:
        return None
    # A cast addend, and one wider than its accumulator, would hide the line of the plain case: the text compares them.
    sums = sums[(sums["cast"] != "explicit") & ((sums["accumulator"] == "fp32") | (sums["addend_dtype"] != "fp32"))]
    kinds = sums.groupby(["steps", "addend"], sort=False)
    figure, panels = new_figure(2, len(kinds), panel_height_in=3.2)
    for column, ((steps, addend), group) in zip(panels.T, kinds, strict=True):
        values, errors = column
        values.set_title(f"{steps:,.0f} × {addend:g}")
        values.plot([0, steps], [0, steps * addend], color="black", linewidth=0.8, linestyle=":", label="exact")
        for case in group.to_dict("records"):
            _sum_lines(values, errors, case)
        _mark_stalls(values, group)
        values.set_ylabel("running sum")
        errors.set_xlabel("step")
        log_values_axis(errors, "relative error")
        # Below its unit roundoff an error of fp32 is a sum that passes the exact line.
        errors.set_ylim(bottom=FORMATS["fp32"].unit_roundoff)
    shared_legend(figure, per_row=4)
    stamp(figure, _stamped(sums, n=1), shown="every step is deterministic")
    return figure


def _sum_lines(values: Axes, errors: Axes, case: dict) -> None:
    names = ("curve_steps", "curve_sums", "curve_rel_errors")
    steps, running, off = (np.array(case[name], dtype=float) for name in names)
    name = label(case)
    style = style_for(case["accumulator"] if case["accumulator"] == case["addend_dtype"] else name)
    values.plot(steps, running, label=name, markevery=MARKER_EVERY, **style)
    errors.plot(steps, np.where(off > 0, off, np.nan), label=name, markevery=MARKER_EVERY, **style)


def _mark_stalls(axes: Axes, group: pd.DataFrame) -> None:
    """Draw a line across at each predicted stall inside the panel."""
    top = axes.get_ylim()[1]
    own = group[(group["accumulator"] == group["addend_dtype"]) & (group["predicted_stall"] < top)]
    for accumulator, stall in zip(own["accumulator"], own["predicted_stall"], strict=True):
        style = {"color": style_for(accumulator)["color"], "linestyle": "--", "linewidth": 1}
        axes.axhline(stall, label=f"predicted stall, {accumulator}", **style)


def variance(rows: pd.DataFrame) -> Figure | None:
    """Draw the relative error of layer norm's variance over the size of its input, with the predicted limits."""
    if rows.empty:
        return None
    normal = rows[rows["input"] == "normal"]
    figure, panels = new_figure(1, len(STATISTICS_METHODS), share_y=True)
    for axes, method in zip(panels[0], STATISTICS_METHODS, strict=True):
        for dtype, sweep in normal[normal["method"] == method].groupby("dtype", sort=False):
            _sweep_line(axes, sweep, "variance_rel_error", dtype)
            _mark_limits(axes, sweep, dtype)
            _mark_overflows(axes, sweep, dtype)
        axes.set_title(METHOD_WORDS[method])
        _magnitudes_axis(axes)
    log_values_axis(panels[0, 0], "relative error of the variance")
    _finish(figure, normal, "median over rows; dotted: predicted limits; ×: infinite")
    return figure


def output(rows: pd.DataFrame) -> Figure | None:
    """Draw the largest error of layer norm's output over the size of its input, a panel a method."""
    if rows.empty:
        return None
    normal = rows[rows["input"] == "normal"]
    figure, panels = new_figure(1, len(METHOD_WORDS), share_y=True)
    for axes, (method, words) in zip(panels[0], METHOD_WORDS.items(), strict=True):
        for dtype, sweep in normal[normal["method"] == method].groupby("dtype", sort=False):
            _sweep_line(axes, sweep, "output_max_error", dtype)
        axes.set_title(words)
        _magnitudes_axis(axes)
    log_values_axis(panels[0, 0], "largest error of the output")
    _finish(figure, normal, "largest over rows; no point: not finite")
    return figure


def _sweep_line(axes: Axes, sweep: pd.DataFrame, column: str, name: str) -> None:
    """Draw one quantity over the magnitude; an exact value, which a log axis cannot hold, leaves a gap."""
    sweep = sweep.sort_values("magnitude")
    values = sweep[column].where(sweep[column] > 0)
    axes.plot(sweep["magnitude"], values, label=name, **style_for(name))


def _mark_limits(axes: Axes, sweep: pd.DataFrame, name: str) -> None:
    """Draw dotted lines at the predicted limits that lie inside the sweep."""
    inside = sweep["magnitude"].agg(["min", "max"])
    for column in ("predicted_overflow_magnitude", "predicted_vanish_magnitude"):
        limit = sweep[column].iloc[0]
        if inside["min"] <= limit <= inside["max"]:
            axes.axvline(limit, color=style_for(name)["color"], linestyle=":", linewidth=1.4)


def _mark_overflows(axes: Axes, sweep: pd.DataFrame, name: str) -> None:
    """Mark with a cross at the upper edge each magnitude at which rows overflow, where there is no error to draw."""
    lost = sweep.loc[sweep["overflow_share"] > 0, "magnitude"]
    at_edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(lost, [1] * len(lost), color=style_for(name)["color"], marker="x", linestyle="", **at_edge)


def _magnitudes_axis(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks([2.0**power for power in MAGNITUDE_TICKS], [f"$2^{{{power}}}$" for power in MAGNITUDE_TICKS])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("std of the input")


def _finish(figure: Figure, normal: pd.DataFrame, words: str) -> None:
    shared_legend(figure)
    stamp(figure, _stamped(normal, n=int(normal["setting_input_rows"].iloc[0])), shown=words)


def _stamped(rows: pd.DataFrame, n: int) -> pd.DataFrame:
    """Name the device that a cell ran on, which on a machine with GPUs may be its CPU."""
    return rows.assign(machine=rows["device_name"], n=n)
