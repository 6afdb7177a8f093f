"""The figure of the sharding section."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from pipeline.formulas.training_state import KINDS
from pipeline.formulas.units import GB
from pipeline.report.figures import new_figure, shared_legend, stamp, style_for
from pipeline.stages.sharding.report.facts import Run


def memory(runs: Sequence[Run]) -> Figure:
    """Draw what a rank holds after a warm step by kind, and its peak where it is known: a panel a run."""
    figure, panels = new_figure(len(runs), 1, panel_height_in=1.7)
    largest = max(max(run.kinds_bytes.sum(axis=1).max(), run.peak_bytes["measured"].max()) for run in runs)
    for axes, run in zip(panels[:, 0], runs, strict=True):
        optimizers = list(run.steps.index)
        left = pd.Series(0.0, index=optimizers)
        for kind in KINDS:
            widths = run.kinds_bytes[kind].reindex(optimizers).fillna(0) / GB
            colour = style_for(kind)["color"]
            axes.barh(optimizers, widths, left=left, height=0.6, color=colour, label=kind.replace("_", " "))
            left = left + widths
        peaks = run.peak_bytes["measured"].reindex(optimizers).dropna() / GB
        if len(peaks):
            axes.plot(peaks, peaks.index, marker="D", color="black", linestyle="", label="peak")
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * largest / GB)
        axes.set_title(run.name, loc="left")
    panels[-1, 0].set_xlabel("memory of the fullest rank (GB)")
    shared_legend(figure)
    stamp(figure, pd.concat([run.steps for run in runs]).assign(n=1), shown="one count after a step")
    return figure
