"""The figures of the memory section."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.formulas.units import GB
from pipeline.report.figures import footnote, names_axis, new_figure, shared_legend, style_for
from pipeline.report.section import data_size
from pipeline.report.tables import OUTCOME_WORDS, significant
from pipeline.stages.memory.report.facts import CATEGORY_WORDS, Recording

# From the bottom up: what is always there first.
KINDS = ("parameters", "optimizer_state", "gradients", "activations", "temporaries", "other")
SMALL_PT = 9.5
ROOM_FOR_PHASES = 1.55
ROOM_FOR_LABELS = 1.15
MOST_MOMENTS = 120


def composition(recorded: Sequence[Recording]) -> Figure:
    """Stack what the peak is made of by context, one panel per precision; the device's memory is a line."""
    precisions = list(dict.fromkeys(one.cell.precision for one in recorded))
    figure, panels = new_figure(1, len(precisions), panel_height_in=3.6, share_y=True)
    devices = {size for one in recorded for size in one.of("allocator")["device_bytes"]}
    highest = max([*devices, *(one.peak.total_bytes for one in recorded if one.measured)]) / GB
    panels[0, 0].set_ylim(0, highest * ROOM_FOR_LABELS)
    panels[0, 0].set_ylabel("peak (GB)")
    for axes, precision in zip(panels[0], precisions, strict=True):
        cells = [one for one in recorded if one.cell.precision == precision]
        _stacks(axes, cells)
        names_axis(axes, [str(one.cell.context_length) for one in cells], "context length (tokens)")
        axes.grid(axis="x", visible=False)
        axes.set_title(precision)
        for size in devices:
            axes.axhline(size / GB, color="black", linestyle="--", linewidth=1.2)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            axes.annotate(
                f"{data_size(size)} can be allocated", (0.02, size / GB), (0, -12), fontsize=SMALL_PT, **place
            )
    shared_legend(figure)
    _sign(figure, recorded[0])
    return figure


def _stacks(axes: Axes, cells: Sequence[Recording]) -> None:
    """Stack the kinds of each recording, its peak above it; of one without a figure only the outcome."""
    places = [place for place, one in enumerate(cells) if one.measured]
    bottom = np.zeros(len(places))
    for kind in KINDS:
        heights = np.array([cells[place].peak.made_of[kind] / GB for place in places])
        axes.bar(places, heights, 0.7, bottom, color=style_for(kind)["color"], label=CATEGORY_WORDS[kind])
        bottom += heights
    for place, one in enumerate(cells):
        height = one.peak.total_bytes / GB if one.measured else 0.0
        words = significant(height) if one.measured else OUTCOME_WORDS.get(one.status, "")
        look = {"ha": "center", "fontsize": SMALL_PT, "fontweight": "normal" if one.measured else "bold"}
        axes.annotate(words, (place, height), (0, 3), textcoords="offset points", **look)


def timelines(recorded: Sequence[Recording]) -> Figure:
    """Draw active memory by kind over the allocator's events, one panel per recording."""
    figure, panels = new_figure(len(recorded), 1, panel_height_in=2.8, share_y=True)
    for axes, one in zip(panels[:, 0], recorded, strict=True):
        by_kind = one.of("timeline").set_index("category")
        kinds = [kind for kind in KINDS if kind in by_kind.index]
        heights = np.array([by_kind.loc[kind, "active_bytes"] for kind in kinds]) / GB
        shown = _highest_moments(heights.sum(axis=0))
        look = {
            "labels": [CATEGORY_WORDS[kind] for kind in kinds],
            "colors": [style_for(kind)["color"] for kind in kinds],
        }
        axes.stackplot(np.array(by_kind["events"].iloc[0])[shown], heights[:, shown], linewidth=0, **look)
        for peak in one.peaks:
            if not peak.step:  # the model is built in no time
                continue
            axes.axvline(peak.begin_event, color="black", linewidth=0.8)
            place = {"textcoords": "offset points", "xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top"}
            axes.annotate(peak.phase, (peak.begin_event, 1), (3, -3), fontsize=SMALL_PT, **place)
        axes.set_title(one.cell.precision, loc="left")
        axes.set_ylabel("active memory (GB)")
        axes.margins(x=0)
    highest = max(peak.total_bytes for one in recorded for peak in one.peaks)
    panels[0, 0].set_ylim(0, highest / GB * ROOM_FOR_PHASES)
    panels[-1, 0].set_xlabel("allocations and releases so far")
    shared_legend(figure)
    _sign(figure, recorded[0])
    return figure


def _highest_moments(total: np.ndarray) -> np.ndarray:
    """Choose the moments to draw: of each part of the timeline, one a few pixels wide, the highest, and the last."""
    parts = np.array_split(np.arange(len(total)), min(MOST_MOMENTS, len(total)))
    return np.unique([*(part[total[part].argmax()] for part in parts), len(total) - 1])


def _sign(figure: Figure, one: Recording) -> None:
    footnote(figure, str(one.rows["machine"].iloc[0]), one.cell.size, f"batch {one.batch_size}", "one recording a cell")
