"""The figure of the levers section: how many times faster each combination is than the eager step."""

from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import BLACK, new_figure, shared_legend, stamp, style_for
from pipeline.report.lever_words import joined
from pipeline.report.table_rows import ok
from pipeline.stages.levers.cell import EAGER
from pipeline.stages.levers.report.selection import models, rank, with_gain

LINE_IN, LABEL_COLUMNS = 0.32, 28


def gains(rows: pd.DataFrame) -> Figure:
    """Draw the gain over the eager step, one line per combination and one marker per model."""
    shown = pd.concat([ok(with_gain(model)) for model in models(rows)])
    shown = shown[shown["levers"] != EAGER]
    names = sorted(shown["levers"].unique(), key=rank)
    figure, panels = new_figure(panel_height_in=1 + LINE_IN * len(names))
    axes = panels[0, 0]
    for (size, context_length), model in shown.groupby(["size", "context_length"], sort=False):
        style = style_for(size) | {"linestyle": ""}
        axes.plot(model["gain"], model["levers"].map(names.index), label=f"{size}, {context_length}", **style)
    axes.axvline(1, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(names)), [fill(joined(name), LABEL_COLUMNS) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("times faster than the eager step")
    shared_legend(figure)
    stamp(figure, shown, "bf16 autocast", f"batch {shown['setting_batch_size'].iloc[0]}", shown="medians")
    return figure
