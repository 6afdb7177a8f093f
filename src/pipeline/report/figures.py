"""One look for every figure: fixed styles per name, quartile bars, outcomes at the edge, reproducible SVG."""

import math
import re
import textwrap
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox

from pipeline.report.table_rows import has_figures
from pipeline.report.tables import OUTCOME_WORDS

WIDTH_IN = 8.0
FONT_PT = 11.5
WORD_PT = 11
LINE_PT = 1.25 * WORD_PT
FOOTER_COLUMNS = 92
# Of the width, since glyphs in an SVG are a little wider than those that the layout measures.
LEGEND_SHARE = 0.95
# Verdana has the widths of DejaVu Sans, which viewers may lack.
FONTS = "'DejaVu Sans', Verdana, sans-serif"
TAG, LONG_NUMBER = re.compile(r"<[^>]+>"), re.compile(r"-?\d+\.\d{2,}(?!\d)")
DARK = " <style>@media (prefers-color-scheme: dark) {svg {filter: invert(0.93) hue-rotate(180deg)}}</style>\n"

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

# Okabe and Ito's colours; their yellow is too pale on white, so grey takes its place.
BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
BLUE, VERMILION, PURPLE, GREY = "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

COLOURS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LINES = ("-", "--", "-.", ":")

# One colour, one meaning in all figures. Names that share it differ in line and marker.
MEANINGS = {
    BLUE: ("bucketed", "naive", "flat", "overlap", "triton", "tiled", "flash", "fsdp"),  # ours
    # PyTorch's
    ORANGE: ("torch", "torch_tuned", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa", "flex", "torch_fsdp"),
    GREY: ("eager", "none"),  # the plain way
    "#3F3F3F": ("compiled", "compiled_eager"),
    BLACK: ("fp32",),
    "#882255": ("bf16",),
    "#B8860B": ("tf32",),
    "#5E8C31": ("fp16",),
    "#8A6FD1": ("fp8",),
    "#332288": ("computation", "matmul"),
    "#AA4499": ("communication",),
    VERMILION: ("softmax",),
    "#8C510A": ("normalisation",),
    PURPLE: ("elementwise",),
    "#661100": ("reduction",),
    SKY: ("copy",),
    "#117733": ("attention",),
    GREEN: ("optimizer", "optimizer_state"),
    "#64748B": ("parameters",),
    "#E07A6E": ("gradients",),
    "#DDCC77": ("activations",),
    "#A6D8F0": ("temporaries",),
    "#D0D0D0": ("other",),
    # Of what has an order, the darker the more.
    "#9BD1C5": ("2 ranks", "tiny"),
    "#5FB3A3": ("4 ranks", "nano", "small"),
    "#2E8F7E": ("micro", "medium"),
    "#1A6F60": ("6 ranks", "large"),
    "#0B4F44": ("8 ranks", "xl"),
    "#06302A": ("2.35B", "2.7B", "10B"),
}
STYLES = {
    name: (colour, MARKERS[(group + place) % len(MARKERS)], LINES[place % len(LINES)])
    for group, (colour, names) in enumerate(MEANINGS.items())
    for place, name in enumerate(names)
}


def style_for(name: str) -> dict[str, str]:
    """Give the colour, marker and line style that a name has in every figure."""
    if name in STYLES:
        colour, marker, line = STYLES[name]
    else:
        # Not hash(), which differs from process to process.
        code = zlib.crc32(name.encode())
        colour, marker, line = COLOURS[code % 8], MARKERS[code // 8 % 8], LINES[code // 64 % 4]
    return {"color": colour, "marker": marker, "linestyle": line}


def new_figure(
    rows: int = 1, columns: int = 1, panel_height_in: float = 3.6, share_y: bool = False
) -> tuple[Figure, np.ndarray]:
    """Make an empty figure in the house style, and its (rows, columns) array of axes."""
    with mpl.rc_context(RC):
        figure = Figure(figsize=(WIDTH_IN, rows * panel_height_in + 0.7), layout="constrained")
        FigureCanvasAgg(figure)
        # Glyphs in an SVG are a little wider than those that the layout measures.
        figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
        return figure, figure.subplots(rows, columns, squeeze=False, sharey=share_y)


def lengths_axis(axes: Axes, lengths: Sequence[int], label: str) -> None:
    """Put lengths on a log2 x axis, each with a plain number at its tick."""
    ticks = sorted(set(lengths))
    axes.set_xscale("log", base=2)
    _fixed_ticks(axes, ticks, [str(tick) for tick in ticks])
    axes.set_xlim(ticks[0] / 1.25, ticks[-1] * 1.25)
    axes.set_xlabel(label)


def names_axis(axes: Axes, names: Sequence[str], label: str) -> None:
    """Put names at the x positions 0, 1, 2, ..."""
    _fixed_ticks(axes, list(range(len(names))), list(names))
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xlabel(label)


def _fixed_ticks(axes: Axes, positions: list, labels: list[str]) -> None:
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(positions, labels)


def log_values_axis(axes: Axes, label: str, which: Literal["x", "y"] = "y") -> None:
    """Make an axis logarithmic, with plain numbers at 1, 2, 5, 10, ..."""
    axes.set(**{f"{which}scale": "log", f"{which}label": label})
    axis: Axis = getattr(axes, f"{which}axis")
    low, high = getattr(axes.dataLim, f"interval{which}")
    # Below each other there is room for more numbers than side by side.
    few = high < {"x": 20, "y": 100}[which] * low
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def values_from_zero(axes: Axes) -> None:
    """Start the y axis at zero, with room over the highest value: a single one would lie on the edge."""
    axes.autoscale_view()
    axes.set_ylim(0, max(axes.get_ylim()[1], 1.08 * axes.dataLim.y1))


def quartile_line(axes: Axes, rows: pd.DataFrame, x: str, name: str, quantity: str = "ms") -> None:
    """Draw medians with quartile error bars, in the name's style, as one legend entry.

    `rows` has the columns x, status, and median_, q1_ and q3_ of the quantity. The line breaks where a row
    has no figure; an unstable row keeps its place with a hollow marker.
    """
    rows = rows.sort_values(x)
    style = style_for(name)
    median = rows[f"median_{quantity}"]
    spread = [median - rows[f"q1_{quantity}"], rows[f"q3_{quantity}"] - median]
    spread = [side.clip(lower=0) for side in spread]  # a rate derived from a time may differ in its last digit
    axes.errorbar(rows[x], median, yerr=spread, label=name, capsize=3, **style)
    unstable = rows[rows["status"] == "unstable"]
    if not unstable.empty:
        hollow = {"linestyle": "", "markerfacecolor": "white", "zorder": 3}
        axes.plot(unstable[x], unstable[f"median_{quantity}"], **style | hollow)
        axes.plot([], [], marker="o", color=BLACK, label=OUTCOME_WORDS["unstable"], **hollow)


def mark_outcomes(axes: Axes, rows: pd.DataFrame, x: str, name: str) -> None:
    """Mark each row without a figure at the upper edge: a cross over its x, and whose outcome it is beside.

    `rows` has the columns x, status, and `name`, which gives the colour. Call it after drawing, when the x
    axis has its limits.
    """
    failed = rows[~has_figures(rows["status"])]
    notes = []
    for (who, status), group in failed.groupby([name, "status"], sort=False):
        notes += _outcome_lines(axes, f"{who} {OUTCOME_WORDS[status]}", group[x], style_for(who)["color"])
    if not notes:
        return
    _make_room(axes, lines=len(notes))
    for line, texts in enumerate(notes):
        below = {"textcoords": "offset points", "va": "top", "fontsize": WORD_PT}
        for text, at, side, right_pt, colour in texts:
            place = {"xycoords": "axes fraction", "xytext": (right_pt, -line * LINE_PT), "ha": side}
            axes.annotate(text, (at, 1), color=colour, **place, **below)


def _outcome_lines(axes: Axes, words: str, positions: pd.Series, colour: str) -> list[list[tuple]]:
    """Lay out one outcome: its crosses, and its words on the side that has room, else on a line of their own."""
    to_fraction = axes.transData + axes.transAxes.inverted()
    ats = sorted(to_fraction.transform((position, 1))[0] for position in positions)
    crosses = [("×", at, "center", 0, colour) for at in ats]
    if ats[0] > 0.5:
        return [[*crosses, (words, ats[0], "right", -WORD_PT * 0.7, colour)]]
    if ats[-1] < 0.5:
        return [[*crosses, (words, ats[-1], "left", WORD_PT * 0.7, colour)]]
    return [[(words, 0.5, "center", 0, colour)], crosses]


def _make_room(axes: Axes, lines: int) -> None:
    """Raise the upper limit, so that so many lines of words fit over the data."""
    height_pt = axes.get_position().height * axes.figure.get_figheight() * 72
    share = min(0.6, (lines + 0.3) * LINE_PT / height_pt)
    scale = axes.yaxis.get_transform()
    low, high = scale.transform(np.array(axes.get_ylim()))
    top = low + (high - low) / (1 - share)
    axes.set_ylim(top=float(scale.inverted().transform(np.array([top]))[0]))


def shared_legend(figure: Figure) -> None:
    """Put one legend over all panels: each name once, as drawn, outcomes last, in as few lines as fit."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    # Axes list lines before error bars, whatever was drawn first.
    entries = dict(sorted(entries.items(), key=lambda entry: entry[0] in OUTCOME_WORDS.values()))
    for lines in range(1, len(entries) + 1):
        # Matplotlib fills columns from the top: seven entries in six columns would be read 1, 3, 4, 5, 6, 7, then 2.
        columns = math.ceil(len(entries) / lines)
        with mpl.rc_context(RC):
            legend = figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width <= LEGEND_SHARE * figure.bbox.width:
            return
        legend.remove()


def stamp(figure: Figure, rows: pd.DataFrame, *facts: str, shown: str = "median and quartiles") -> None:
    """Write device, software, the given facts, the number of samples and what is shown of them at the foot.

    `rows` has the columns machine, torch and n, and holds what the figure shows.
    """
    measured = rows[rows["n"].notna()]
    words = [*rows["machine"].unique(), *(f"torch {version}" for version in rows["torch"].unique()), *facts]
    words.append(f"n={_range(measured['n'])}, {shown}")
    footnote(figure, *words)


def footnote(figure: Figure, *facts: str) -> None:
    """Write facts at the foot of a figure, and make room for them."""
    text = textwrap.fill(" · ".join(facts), FOOTER_COLUMNS)
    height = (text.count("\n") + 1.6) * LINE_PT / 72 / figure.get_figheight()
    figure.get_layout_engine().set(rect=(0, height, 1, 1 - height))
    figure.text(0.5, 0.01, text, ha="center", va="bottom", fontsize=WORD_PT, color="#555555")


def _range(values: pd.Series) -> str:
    low, high = int(values.min()), int(values.max())
    return str(low) if low == high else f"{low} to {high}"


def save(figure: Figure, path: Path) -> None:
    """Write the figure as SVG, the same bytes each time it is drawn from the same data.

    Opaque: dark on white, and where the reader's screen is dark light on black, in the same hues.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        text.set_parse_math(RC["text.parse_math"])
    with mpl.rc_context(RC):
        _settle_layout(figure)
        figure.savefig(path, format="svg", metadata={"Date": None})
    path.write_text(_shorter(path.read_text(encoding="utf-8")), encoding="utf-8")


def _shorter(svg: str) -> str:
    """Round coordinates to a tenth of a point, and add a dark mode and fonts to fall back to."""
    rounded = TAG.sub(lambda tag: LONG_NUMBER.sub(lambda number: f"{float(number[0]):.1f}", tag[0]), svg)
    # In a path, pairs of numbers after the first are lines by themselves.
    head, opening, body = rounded.replace(" \nL ", " ").partition(" <defs>")
    return head + DARK + opening + body.replace("'DejaVu Sans'", FONTS)


def _settle_layout(figure: Figure) -> None:
    """Lay the figure out and fix its axes where they are, to a ten-thousandth of its size.

    The last bits of the layout's solution differ from one time to the next, and the ids in an SVG are hashes of it.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine(None)
    for axes in figure.axes:
        axes.set_position(Bbox(axes.get_position(original=True).get_points().round(4)))
