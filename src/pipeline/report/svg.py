"""Draw a chart as SVG by Matplotlib: the same bytes each time, text as text, dark on a dark screen."""

import math
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from pipeline.report.chart import Axis, Chart
from pipeline.report.look import colours, style
from pipeline.report.table import OUTCOME_WORDS

WIDTH_IN, LINE_HEIGHT_IN, BAR_HEIGHT_IN = 8.0, 3.4, 0.24
FONT_PT, SMALL_PT = 11.5, 9.5
# Verdana has the widths of DejaVu Sans, which viewers may lack.
FONTS = "'DejaVu Sans', Verdana, sans-serif"
TAG, LONG_NUMBER = re.compile(r"<[^>]+>"), re.compile(r"-?\d+\.\d{2,}(?!\d)")
DARK = " <style>@media (prefers-color-scheme: dark) {svg {filter: invert(0.93) hue-rotate(180deg)}}</style>\n"
FAINT, NO_COLOUR = 0.45, "#5b6570"
RC = {
    "font.family": "DejaVu Sans",
    "font.size": FONT_PT,
    "axes.titlesize": FONT_PT,
    "axes.labelsize": FONT_PT,
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "legend.fontsize": 11,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
    # A GPU's name or a reason may hold dollars, which are no formulas.
    "text.parse_math": False,
    # Words as words: to be found, copied and read aloud. The salt makes the ids of the SVG repeatable.
    "svg.fonttype": "none",
    "svg.hashsalt": "llm-systems-pipeline",
}


def draw(chart: Chart, path: Path) -> None:
    """Write a chart that is not empty as SVG; raises OSError where the file cannot be written."""
    with mpl.rc_context(RC):
        figure = _figure(chart)
        for words in figure.findobj(Text):
            words.set_parse_math(RC["text.parse_math"])
        _settle(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
    path.write_text(_shorter(path.read_text(encoding="utf-8")), encoding="utf-8")


def _figure(chart: Chart) -> Figure:
    drawn = chart.drawn
    panels = list(drawn.groupby(chart.panel, sort=False)) if chart.panel else [("", drawn)]
    heights = [_height_in(chart, rows) for _, rows in panels]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    # Glyphs in an SVG are a little wider than those that the layout measures.
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    places = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    names = [str(name) for name in drawn[chart.colour].unique()] if chart.colour else []
    looks = colours(names)
    for axes, (name, rows) in zip(places, panels, strict=True):
        _lines_behind(axes, chart)
        _MARKS[chart.mark](axes, chart, rows, looks)
        _limits(axes, chart)
        if chart.panel:
            axes.set_title(str(name), loc="left", fontsize=FONT_PT)
    for axes in places[:-1]:
        axes.set_xlabel("")
    _legend(figure, places)
    return figure


def _height_in(chart: Chart, rows: pd.DataFrame) -> float:
    if not chart.is_horizontal:
        return LINE_HEIGHT_IN
    groups = rows[chart.y.column].nunique()
    if chart.mark == "stack":
        return 0.34 * groups + 0.8
    kinds = rows[chart.colour].nunique() if chart.colour else 1
    return BAR_HEIGHT_IN * groups * kinds + 0.12 * groups + 0.7


def _bars(axes: Axes, chart: Chart, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    groups = list(dict.fromkeys(rows[chart.y.column]))
    kinds = list(dict.fromkeys(rows[chart.colour])) if chart.colour else [""]
    height = 0.84 / len(kinds)
    for place, kind in enumerate(kinds):
        own = rows[rows[chart.colour] == kind] if chart.colour else rows
        at = own[chart.y.column].map(groups.index) + (place - (len(kinds) - 1) / 2) * height
        values = own[chart.x.column].astype(float).fillna(0.0)
        colour = looks.get(str(kind), style("ours")["color"])
        drawn = axes.barh(at, values, height * 0.92, color=colour)
        axes.fill([], [], color=colour, label=str(kind) or None)  # for the legend: the first bar may be faint
        for bar, status in zip(drawn, _statuses(own), strict=True):
            bar.set_alpha(FAINT if status == "unstable" else None)
        for where, value, words in zip(at, values, _labels(chart, own), strict=True):
            axes.annotate(words, (value, where), (4, 0), textcoords="offset points", va="center", fontsize=SMALL_PT)
    _names_down(axes, chart, groups)
    axes.margins(x=0.16 if chart.label else 0.04)


def _stacks(axes: Axes, chart: Chart, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    groups = list(dict.fromkeys(rows[chart.y.column]))
    wide = rows.pivot_table(
        index=chart.y.column, columns=chart.colour, values=chart.x.column, aggfunc="sum", sort=False
    )
    wide = wide.reindex(index=groups, columns=list(dict.fromkeys(rows[chart.colour]))).fillna(0.0)
    left = np.zeros(len(groups))
    for kind in wide:
        axes.barh(range(len(groups)), wide[kind], 0.74, left=left, color=looks[str(kind)], label=str(kind))
        left = left + wide[kind].to_numpy()
    _names_down(axes, chart, groups)


def _strips(axes: Axes, chart: Chart, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    groups = list(dict.fromkeys(rows[chart.y.column]))
    for kind, own in rows.groupby(chart.colour, sort=False) if chart.colour else [("", rows)]:
        colour = looks.get(str(kind), style("ours")["color"])
        places = own[chart.y.column].map(groups.index)
        axes.plot(own[chart.x.column], places, "o", color=colour, alpha=0.6, label=str(kind) or None)
    _names_down(axes, chart, groups)


def _names_down(axes: Axes, chart: Chart, groups: list) -> None:
    axes.set_yticks(range(len(groups)), [str(group) for group in groups])
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    _scale(axes, chart.x, "x")
    axes.set_ylabel(chart.y.title)


def _lines(axes: Axes, chart: Chart, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    for kind, own in rows.groupby(chart.colour, sort=False) if chart.colour else [("", rows)]:
        own = own.sort_values(chart.x.column)
        look = style(str(kind)) | ({"color": looks[str(kind)]} if chart.colour else {})
        if len(own) > 60:
            look["marker"] = ""
        x, y = own[chart.x.column], own[chart.y.column]
        if chart.low:
            spread = [(y - own[chart.low]).clip(lower=0), (own[chart.high] - y).clip(lower=0)]
            axes.errorbar(x, y, yerr=spread, capsize=3, label=str(kind) or None, **look)
        else:
            axes.plot(x, y, label=str(kind) or None, **look)
        unstable = own[_statuses(own) == "unstable"]
        hollow = {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
        axes.plot(unstable[chart.x.column], unstable[chart.y.column], **look | hollow)
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")


def _points(axes: Axes, chart: Chart, rows: pd.DataFrame, looks: dict[str, str]) -> None:
    for kind, own in rows.groupby(chart.colour, sort=False) if chart.colour else [("", rows)]:
        look = style(str(kind)) | {"linestyle": ""} | ({"color": looks[str(kind)]} if chart.colour else {})
        for is_unstable, part in own.groupby(_statuses(own) == "unstable"):
            alpha, label = (FAINT if is_unstable else 1.0), None if is_unstable and len(part) < len(own) else str(kind)
            axes.plot(part[chart.x.column], part[chart.y.column], alpha=alpha, label=label or None, **look)
    _scale(axes, chart.x, "x")
    _scale(axes, chart.y, "y")
    if chart.label:
        _name_points(axes, chart, rows)


def _name_points(axes: Axes, chart: Chart, rows: pd.DataFrame) -> None:
    """Write each point's name beside it, on the first of four sides on which it covers no other name or point."""
    axes.margins(0.12)
    axes.autoscale_view()
    placed = [axes.transData.transform(point) for point in zip(rows[chart.x.column], rows[chart.y.column], strict=True)]
    boxes: list[Bbox] = [Bbox.from_bounds(x - 4, y - 4, 8, 8) for x, y in placed]
    for (x, y), words in zip(placed, rows[chart.label].astype(str), strict=True):
        width, height = 0.62 * SMALL_PT * len(words) * axes.figure.dpi / 72, 1.2 * SMALL_PT * axes.figure.dpi / 72
        sides = [(6, -height / 2, "left"), (-6, -height / 2, "right"), (0, 8, "center"), (0, -8 - height, "center")]
        starts = {"left": 0.0, "right": -width, "center": -width / 2}
        tried = [
            (Bbox.from_bounds(x + dx + starts[side], y + dy, width, height), dx, dy, side) for dx, dy, side in sides
        ]
        free = [each for each in tried if not any(each[0].overlaps(other) for other in boxes)]
        box, dx, dy, side = (free or tried)[0]
        boxes.append(box)
        at = axes.transData.inverted().transform((x, y))
        offset = (dx * 72 / axes.figure.dpi, (dy + height / 2) * 72 / axes.figure.dpi)
        axes.annotate(words, at, offset, textcoords="offset points", ha=side, va="center", fontsize=SMALL_PT)


_MARKS = {"bar": _bars, "strip": _strips, "stack": _stacks, "line": _lines, "point": _points}


def _statuses(rows: pd.DataFrame) -> pd.Series:
    return rows["status"] if "status" in rows else pd.Series("ok", index=rows.index)


def _labels(chart: Chart, rows: pd.DataFrame) -> list[str]:
    """Return what stands beside each bar: its label, or its outcome where it has no value."""
    labels = rows[chart.label].astype(str) if chart.label else pd.Series("", index=rows.index)
    outcomes = _statuses(rows).map(OUTCOME_WORDS).fillna("")
    return [
        outcome if pd.isna(value) else label
        for value, label, outcome in zip(rows[chart.x.column], labels, outcomes, strict=True)
    ]


def _scale(axes: Axes, axis: Axis, which: str) -> None:
    axes.set(**{f"{which}label": axis.title})
    if axis.log:
        _log_scale(axes, which)
    elif axis.zero:
        axes.autoscale_view()
        low, high = getattr(axes, f"get_{which}lim")()
        getattr(axes, f"set_{which}lim")(min(0.0, low if low < -0.05 * abs(high) else 0.0), high)
    if not axis.log:
        getattr(axes, f"{which}axis").set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def _log_scale(axes: Axes, which: str) -> None:
    """Make an axis logarithmic: a tick at each power of two where all values are such, else plain 1, 2, 5, 10."""
    lines = [
        np.asarray(line.get_xdata() if which == "x" else line.get_ydata(), dtype=float) for line in axes.get_lines()
    ]
    values = np.unique(np.concatenate([*lines, np.array([])]))
    values = values[np.isfinite(values) & (values > 0)]
    target = getattr(axes, f"{which}axis")
    if which == "x" and 0 < len(values) <= 14 and all(math.log2(value).is_integer() for value in values):
        axes.set_xscale("log", base=2)
        target.set_minor_locator(NullLocator())
        axes.set_xticks(values, [f"{value:g}" if value < 2**17 else f"2^{int(math.log2(value))}" for value in values])
        return
    axes.set(**{f"{which}scale": "log"})
    few = len(values) == 0 or values[-1] < 50 * values[0]
    target.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    target.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    target.set_minor_formatter(NullFormatter())


def _lines_behind(axes: Axes, chart: Chart) -> None:
    for label, points in chart.lines.items():
        axes.plot(*zip(*points, strict=True), color=NO_COLOUR, linewidth=1.0, linestyle=":")
        place: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "bottom"}
        axes.annotate(label, chart.middle(points), (-4, 4), fontsize=SMALL_PT, color=NO_COLOUR, **place)


def _limits(axes: Axes, chart: Chart) -> None:
    across = axes.axvline if chart.is_horizontal else axes.axhline
    which = "x" if chart.is_horizontal else "y"
    for limit in chart.limits:
        across(limit.value, color=NO_COLOUR, linewidth=1.0, linestyle=":")
        low, high = getattr(axes, f"get_{which}lim")()
        getattr(axes, f"set_{which}lim")(min(low, limit.value), max(high, limit.value))
        data, edge = ("data", "axes fraction") if chart.is_horizontal else ("axes fraction", "data")
        at = (limit.value, 1.0) if chart.is_horizontal else (1.0, limit.value)
        where: dict[str, Any] = {"xycoords": (data, edge), "ha": "right", "va": "bottom"}
        axes.annotate(limit.label, at, (0, 2), textcoords="offset points", fontsize=SMALL_PT, color=NO_COLOUR, **where)


def _legend(figure: Figure, places: np.ndarray) -> None:
    """Put one legend over all panels, each name once, in as few lines as fit."""
    entries: dict[str, object] = {}
    for axes in places:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    for lines in range(1, len(entries) + 1):
        columns = math.ceil(len(entries) / lines)
        legend = figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= 0.95 * figure.bbox.width:
            return
        legend.remove()


def _settle(figure: Figure) -> None:
    """Lay the figure out and fix its axes to a ten-thousandth of its size: the last bits of a layout differ."""
    figure.draw_without_rendering()
    figure.set_layout_engine(None)
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position(original=True).get_points().round(4)))


def _shorter(svg: str) -> str:
    """Round coordinates to a tenth of a point, and add a dark mode and fonts to fall back to."""
    rounded = TAG.sub(lambda tag: LONG_NUMBER.sub(lambda found: f"{float(found[0]):.1f}", tag[0]), svg)
    # In a path, pairs of numbers after the first are lines by themselves.
    head, opening, body = rounded.replace(" \nL ", " ").partition(" <defs>")
    return head + DARK + opening + body.replace("'DejaVu Sans'", FONTS)
