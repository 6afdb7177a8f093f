"""The figure of the fsdp section."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from pipeline.formulas.units import GB
from pipeline.report.figures import new_figure, shared_legend, stamp, style_for
from pipeline.stages.fsdp.report.facts import NAMES, Run

COLUMNS = 2


def time_and_memory(runs: Sequence[Run]) -> Figure:
    """Draw the memory of the fullest rank over the time of a step, a marker a way, a panel a run."""
    rows = -(-len(runs) // COLUMNS)
    figure, panels = new_figure(rows, min(COLUMNS, len(runs)), panel_height_in=3.0)
    for axes in panels.flat[len(runs) :]:
        axes.set_visible(False)
    for axes, run in zip(panels.flat, runs, strict=False):
        for impl, way in NAMES.items():
            size = run.fullest_bytes(way)
            if size is not None and way in run.steps.index:
                look = {**style_for(impl), "linestyle": ""}
                axes.plot(run.steps.loc[way, "median_ms"], size / GB, label=way, markersize=9, **look)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_title(run.name, loc="left")
        axes.set_xlabel("step (ms)")
    for axes in panels[:, 0]:
        axes.set_ylabel(f"{'peak' if len(runs[0].peak_bytes) else 'held after a step'} (GB)")
    shared_legend(figure)
    stamp(figure, pd.concat([run.steps for run in runs]))
    return figure
