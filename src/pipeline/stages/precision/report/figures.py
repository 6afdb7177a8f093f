"""The figures of the precision section."""

import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.report.figures import BLACK, footnote, new_figure, shared_legend, style_for

MARKER_EVERY = 25


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


def _foot(figure: Drawing, rows: pd.DataFrame, *facts: str) -> None:
    row = rows.iloc[0]
    footnote(figure, str(row["device_name"]), f"torch {row['torch']}", *facts)
