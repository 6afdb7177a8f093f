"""The figure of the timing section: the rate of training steps against their work."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import WORD_PT, log_values_axis, new_figure, shared_legend, stamp, style_for
from pipeline.report.table_rows import known
from pipeline.stages.timing.report.steps import main_precision, of_mode, step_flops, warm

TERA = 1e12
PEAK_WORDS = {"datasheet": "data sheet", "measured": "peak, measured"}


def achieved(rows: pd.DataFrame, reached: Mapping[str, float]) -> Figure:
    """Draw the TFLOP/s of eager steps of the usual batch over their work, a marker per context, with the ceilings.

    Those are the peaks of the rows, and in `reached`, by precision, the rate of a matrix product alone.
    """
    steps = of_mode(warm(rows), "eager")
    steps = steps.assign(work=[step_flops(row) / TERA for _, row in steps.iterrows()])
    figure, panels = new_figure()
    axes = panels[0, 0]
    for precision, group in steps.groupby("precision", sort=False):
        style = style_for(precision) | {"linestyle": ""}
        axes.plot(group["work"], group["model_tflops_per_s"], label=precision, **style)
        source = known(group, "peak_source")["peak_source"].max()
        _mark_ceiling(axes, precision, PEAK_WORDS.get(source, "peak"), group["peak_tflops_per_s"].max(), ":")
        _mark_ceiling(axes, precision, "matmul", reached.get(precision, np.nan), "--")
    most_work = steps[steps["precision"] == main_precision(rows)].sort_values("work").groupby("size").tail(1)
    for _, step in most_work.iterrows():
        place = {"textcoords": "offset points", "ha": "center", "fontsize": WORD_PT - 1}
        axes.annotate(step["size"], (step["work"], step["model_tflops_per_s"]), (0, 6), **place)
    log_values_axis(axes, "work of one training step (TFLOP)", "x")
    log_values_axis(axes, "achieved TFLOP/s")
    shared_legend(figure)
    batch = f"batch {steps['batch_size'].iloc[0]}"
    stamp(figure, steps, f"{batch}, one marker per model and context, named at the most work", shown="medians")
    return figure


def _mark_ceiling(axes: Axes, precision: str, what: str, tflops_per_s: float, line: str) -> None:
    if not np.isfinite(tflops_per_s):
        return
    look = {"color": style_for(precision)["color"]}
    axes.axhline(tflops_per_s, linewidth=1, linestyle=line, **look)
    # On the left, where steps are far below; a peak's name above its line, that of what is reached below.
    place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "fontsize": 8}
    offset, side = (-2, "top") if line == "--" else (1, "bottom")
    axes.annotate(f"{precision} {what}", (0, tflops_per_s), (3, offset), va=side, **place, **look)
