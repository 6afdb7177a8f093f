"""The figures of the precision section."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from pipeline.report.figures import BLACK, footnote, log_values_axis, new_figure, shared_legend, style_for

MARKER_EVERY = 25
MAGNITUDE_TICKS = range(-16, 80, 16)
STATISTICS_WORDS = {"in_format": "all in the format", "fp32_sums": "sums in fp32"}


def accumulation(sums: pd.DataFrame) -> Drawing:
    """Draw running sums over the steps, one panel per number of steps, one line per data type."""
    kinds = sums.groupby(["steps", "addend"], sort=False)
    figure, panels = new_figure(1, len(kinds), panel_height_in=3.2)
    for axes, ((steps, addend), group) in zip(panels[0], kinds, strict=True):
        axes.plot([0, steps], [0, steps * addend], color=BLACK, linewidth=0.8, linestyle=":", label="exact")
        for case in group.to_dict("records"):
            style = style_for(case["accumulator"])
            axes.plot(
                case["curve_steps"], case["curve_sums"], label=case["accumulator"], markevery=MARKER_EVERY, **style
            )
        axes.set_title(f"{steps:,.0f} × {addend:g}")
        axes.set_xlabel("step")
    panels[0, 0].set_ylabel("running sum")
    shared_legend(figure)
    _foot(figure, sums)
    return figure


def variance(rows: pd.DataFrame) -> Drawing:
    """Draw the relative error of the variance over the size of the input, a panel a method, with predicted limits.

    A cross at the upper edge is a size at which rows overflow, where there is no error to draw.
    """
    figure, panels = new_figure(1, len(STATISTICS_WORDS), share_y=True)
    for axes, (method, words) in zip(panels[0], STATISTICS_WORDS.items(), strict=True):
        for dtype, sweep in rows[rows["method"] == method].groupby("dtype", sort=False):
            _sweep(axes, sweep.sort_values("magnitude"), dtype)
        axes.set_title(words)
        axes.set_xscale("log", base=2)
        axes.set_xticks([2.0**power for power in MAGNITUDE_TICKS], [f"$2^{{{power}}}$" for power in MAGNITUDE_TICKS])
        axes.set_xticks([], minor=True)
        axes.set_xlabel("standard deviation of the input")
    log_values_axis(panels[0, 0], "relative error of the variance")
    shared_legend(figure)
    _foot(figure, rows, "median over rows", "dotted: predicted limits", "×: infinite")
    return figure


def _sweep(axes: Axes, sweep: pd.DataFrame, dtype: str) -> None:
    colour = style_for(dtype)["color"]
    # An exact value, which a log axis cannot hold, leaves a gap.
    error = sweep["variance_rel_error"].where(sweep["variance_rel_error"] > 0)
    axes.plot(sweep["magnitude"], error, label=dtype, **style_for(dtype))
    for limit in sweep[["predicted_overflow_magnitude", "predicted_vanish_magnitude"]].iloc[0]:
        if sweep["magnitude"].min() <= limit <= sweep["magnitude"].max():
            axes.axvline(limit, color=colour, linestyle=":", linewidth=1.4)
    lost = sweep.loc[sweep["overflow_share"] > 0, "magnitude"]
    at_edge = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(lost, [1] * len(lost), color=colour, marker="x", linestyle="", **at_edge)


def _foot(figure: Drawing, rows: pd.DataFrame, *facts: str) -> None:
    row = rows.iloc[0]
    footnote(figure, str(row["device_name"]), f"torch {row['torch']}", *facts)
