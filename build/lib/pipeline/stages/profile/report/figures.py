"""The figure of the profile section."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.figures import footnote, names_axis, new_figure, shared_legend, style_for
from pipeline.report.section import ms
from pipeline.stages.profile.report.facts import Capture

SMALL_PT = 9.5
RARE = 0.01  # a category that is nowhere more is drawn as other
OTHER = "other"


def categories(captured: Sequence[Capture], path: str) -> Figure:
    """Stack the categories' shares of a range's kernel time, one bar per model, one panel per precision.

    Over each bar stands the time of all its kernels.
    """
    precisions = list(dict.fromkeys(one.cell.precision for one in captured))
    shares = pd.DataFrame({one: one.shares(path) for one in captured}).reindex(CATEGORIES).fillna(0)
    rare = shares[(shares <= RARE).all(axis=1)].drop(OTHER, errors="ignore")
    shares = shares.drop(rare.index)
    shares.loc[OTHER] += rare.sum()
    shares = shares[shares.any(axis=1)]
    figure, panels = new_figure(1, len(precisions), panel_height_in=3.6, share_y=True)
    for axes, precision in zip(panels[0], precisions, strict=True):
        bars = [one for one in captured if one.cell.precision == precision]
        bottom = np.zeros(len(bars))
        for name, heights in (100 * shares[bars]).iterrows():
            axes.bar(range(len(bars)), heights, 0.75, bottom, color=style_for(name)["color"], label=name)
            bottom += heights.to_numpy()
        for place, one in enumerate(bars):
            axes.annotate(ms(one.total_ms(path)), (place, 101), ha="center", fontsize=SMALL_PT, rotation=30)
        names_axis(axes, [one.cell.size for one in bars], "")
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_ylim(0, 118)
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="x", visible=False)
        axes.set_title(precision)
    panels[0, 0].set_ylabel("share of kernel time (%)" if captured[0].on_gpu else "share of the time (%)")
    shared_legend(figure)
    one = captured[0]
    footnote(figure, one.machine, f"batch {one.batch_size}", f"context {one.cell.context_length}", one.captured_by)
    return figure
