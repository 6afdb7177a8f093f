"""The figures of the profile section."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.figures import footnote, names_axis, new_figure, shared_legend, style_for
from pipeline.report.section import ms
from pipeline.stages.profile.report.facts import Capture

SMALL_PT = 9.5
RARE = 0.01  # a category that is nowhere more is drawn as other
OTHER = "other"


def categories(captured: Sequence[Capture], path: str) -> Figure:
    """Stack the categories' shares of a range's kernel time, a bar a model, a panel a precision.

    Over each bar stands the time of all its kernels.
    """
    precisions = list(dict.fromkeys(one.cell.precision for one in captured))
    present = {name for one in captured for name, share in one.shares(path).items() if share}
    frequent = {name for one in captured for name, share in one.shares(path).items() if share > RARE}
    names = [name for name in CATEGORIES if name in frequent or (name == OTHER and present - frequent)]
    figure, panels = new_figure(1, len(precisions), panel_height_in=3.6, share_y=True)
    for axes, precision in zip(panels[0], precisions, strict=True):
        bars = [one for one in captured if one.cell.precision == precision]
        bottom = np.zeros(len(bars))
        for name in names:
            heights = np.array([100 * _share(one.shares(path), name, names) for one in bars])
            axes.bar(range(len(bars)), heights, 0.75, bottom, color=style_for(name)["color"], label=name)
            bottom += heights
        for place, one in enumerate(bars):
            axes.annotate(ms(one.total_ms(path)), (place, 101), ha="center", fontsize=SMALL_PT, rotation=30)
        names_axis(axes, [one.cell.size for one in bars], "")
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_ylim(0, 118)
        axes.set_yticks(range(0, 101, 20))
        axes.grid(axis="x", visible=False)
        axes.set_title(precision)
    panels[0, 0].set_ylabel("share of kernel time (%)" if captured[0].on_gpu else "share of the time (%)")
    shared_legend(figure, per_row=4)
    _sign(figure, captured[0])
    return figure


def _share(shares: pd.Series, name: str, names: Sequence[str]) -> float:
    if name == OTHER:
        return float(shares[[one for one in shares.index if one == OTHER or one not in names]].sum())
    return float(shares.get(name, 0.0))


def layers(captured: Sequence[Capture]) -> Figure:
    """Draw the timeline of one layer's forward pass, a panel a capture: kernels, and the ranges that launched them."""
    figure, panels = new_figure(len(captured), 1, panel_height_in=2.4)
    for axes, one in zip(panels[:, 0], captured, strict=True):
        _draw_timeline(axes, one.layer, one.work)
        axes.set_title(one.cell.precision)
    panels[-1, 0].set_xlabel("time from the layer's first kernel on (µs)" if captured[0].on_gpu else "time (µs)")
    shared_legend(figure, per_row=5)
    _sign(figure, captured[0])
    return figure


def _draw_timeline(axes: Axes, events: pd.DataFrame, what: str) -> None:
    _draw_ranges(axes, events, events["path"].map(_part), height=2)
    narrow, end_us = _draw_ranges(axes, events, events["path"].map(_phase), height=1)
    beside = {"textcoords": "offset points", "va": "center", "fontsize": SMALL_PT}
    axes.annotate(", ".join(narrow), (end_us, 1), (6, 0), **beside)
    for category, group in events.groupby("category"):
        bars = list(zip(group["start_us"], group["duration_us"], strict=True))
        look = {"facecolors": style_for(str(category))["color"], "edgecolor": "white", "linewidth": 0.4}
        axes.broken_barh(bars, (-0.4, 0.8), label=category, **look)
    axes.set_yticks([0, 1, 2], [what, "phase", "part"])
    axes.grid(axis="y", visible=False)
    axes.set_ylim(-0.6, 2.6)


def _part(path: str) -> str:
    """Name the part of the layer that a path leads into; what it does between its parts is the residual stream's."""
    return path.partition("/")[0].replace("_", " ") or "residual"


def _phase(path: str) -> str:
    """Name the innermost range where it lies inside the part."""
    part, _, inner = path.partition("/")
    innermost = inner.rpartition("/")[2]
    return "" if innermost == part else innermost


def _draw_ranges(axes: Axes, events: pd.DataFrame, names: pd.Series, height: int) -> tuple[list[str], float]:
    """Draw each run of events with the same name as one bar, with the name inside where it fits.

    Returns the names that did not fit, and where the last bar ends.
    """
    ends_us = events["start_us"] + events["duration_us"]
    runs = (names != names.shift()).cumsum()
    narrow, end_us = [], 0.0
    for _, rows in events[names != ""].groupby(runs):
        name, start_us, end_us = names[rows.index[0]], rows["start_us"].min(), ends_us[rows.index].max()
        axes.broken_barh(
            [(start_us, end_us - start_us)], (height - 0.35, 0.7), facecolors="#EFEFEF", edgecolor="#9A9A9A"
        )
        if end_us - start_us > ends_us.max() * 0.0125 * len(name):
            axes.text((start_us + end_us) / 2, height, name, ha="center", va="center", fontsize=SMALL_PT)
        else:
            narrow.append(name)
    return narrow, end_us


def _sign(figure: Figure, one: Capture) -> None:
    footnote(figure, one.machine, f"batch {one.batch_size}", f"context {one.cell.context_length}", one.captured_by)
