"""The figures of the memory section."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import (
    MARKERS,
    footnote,
    names_axis,
    new_figure,
    shared_legend,
    style_for,
)
from pipeline.report.section import data_size
from pipeline.report.tables import OUTCOME_WORDS, significant
from pipeline.stages.memory.report.facts import CATEGORY_WORDS, Recording, Unit

# From the bottom up: what is always there first.
KINDS = ("parameters", "optimizer_state", "gradients", "activations", "temporaries", "other")
SMALL_PT = 9.5
ROOM_FOR_PHASES = 1.55
ROOM_FOR_LABELS = 1.15
MOST_PANELS = 3
MOST_MOMENTS = 120


def _panels(recorded: Sequence[Recording], axis: str) -> dict[str, list[Recording]]:
    return {
        value: [one for one in recorded if getattr(one.cell, axis) == value]
        for value in dict.fromkeys(getattr(one.cell, axis) for one in recorded)
    }


def composition(recorded: Sequence[Recording], unit: Unit) -> Figure:
    """Stack what the peak is made of by context, a panel a precision; the device's memory is a line."""
    panels = _panels(recorded, "precision")
    figure, axes = new_figure(1, len(panels), panel_height_in=3.6, share_y=True)
    devices = {one.allocator["device_bytes"] for one in recorded if one.allocator is not None}
    for panel, (precision, cells) in zip(axes[0], panels.items(), strict=True):
        measured = [one for one in cells if one.measured]
        places = [place for place, one in enumerate(cells) if one.measured]
        bottom = np.zeros(len(measured))
        for kind in KINDS:
            heights = np.array([one.peak.made_of[kind] / unit.bytes for one in measured])
            panel.bar(places, heights, 0.7, bottom, color=style_for(kind)["color"], label=CATEGORY_WORDS[kind])
            bottom += heights
        for place, one in enumerate(cells):
            words, height, look = OUTCOME_WORDS.get(one.status, ""), 0.0, {"fontweight": "bold"}
            if one.measured:
                height = one.peak.total_bytes / unit.bytes
                words, look = significant(height), {}
            beside = {"textcoords": "offset points", "ha": "center", "fontsize": SMALL_PT}
            panel.annotate(words, (place, height), (0, 3), **beside, **look)
        names_axis(panel, [str(one.cell.context_length) for one in cells], "context length (tokens)")
        panel.grid(axis="x", visible=False)
        panel.set_title(precision)
        for device_bytes in devices:
            panel.axhline(device_bytes / unit.bytes, color="black", linestyle="--", linewidth=1.2)
            place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            words = f"the device has {data_size(device_bytes)}"
            panel.annotate(words, (0.02, device_bytes / unit.bytes), (0, -12), fontsize=SMALL_PT, **place)
    highest = max([*devices, *(one.peak.total_bytes for one in recorded if one.measured)]) / unit.bytes
    axes[0, 0].set_ylim(0, highest * ROOM_FOR_LABELS)
    axes[0, 0].set_ylabel(f"peak ({unit.name})")
    shared_legend(figure, per_row=3)
    _sign(figure, recorded[0])
    return figure


def timelines(recorded: Sequence[Recording], unit: Unit) -> Figure:
    """Draw active memory by kind over the allocator's events, a panel a recording."""
    figure, panels = new_figure(len(recorded), 1, panel_height_in=2.8, share_y=True)
    for axes, one in zip(panels[:, 0], recorded, strict=True):
        kinds = [kind for kind in KINDS if kind in one.timeline]
        events, _ = one.timeline[kinds[0]]
        heights = np.array([one.timeline[kind][1] for kind in kinds]) / unit.bytes
        shown = _highest_moments(heights.sum(axis=0))
        look = {
            "labels": [CATEGORY_WORDS[kind] for kind in kinds],
            "colors": [style_for(kind)["color"] for kind in kinds],
        }
        axes.stackplot(np.array(events)[shown], heights[:, shown], linewidth=0, **look)
        for peak in one.peaks:
            if not peak.step:  # the model is built in no time
                continue
            axes.axvline(peak.begin_event, color="black", linewidth=0.8)
            place = {"textcoords": "offset points", "xycoords": ("data", "axes fraction"), "rotation": 90, "va": "top"}
            axes.annotate(peak.phase, (peak.begin_event, 1), (3, -3), fontsize=SMALL_PT, **place)
        axes.set_title(one.cell.precision, loc="left")
        axes.set_ylabel(f"active memory ({unit.name})")
        axes.margins(x=0)
    highest = max(peak.total_bytes for one in recorded for peak in one.peaks)
    panels[0, 0].set_ylim(0, highest / unit.bytes * ROOM_FOR_PHASES)
    panels[-1, 0].set_xlabel("allocations and releases so far")
    shared_legend(figure, per_row=3)
    _sign(figure, recorded[0])
    return figure


def _highest_moments(total: np.ndarray) -> np.ndarray:
    """Choose the moments to draw: of each part of the timeline, one a few pixels wide, the highest, and the last."""
    parts = np.array_split(np.arange(len(total)), min(MOST_MOMENTS, len(total)))
    return np.unique([*(part[total[part].argmax()] for part in parts), len(total) - 1])


def trade_off(groups: Sequence[Sequence[Recording]], unit: Unit) -> Figure | None:
    """Draw peak memory against step time, a panel a context; None where nothing was timed.

    The colour is the attention's, the marker the checkpoints'.
    """
    timed = [[one for one in group if one.step is not None] for group in groups]
    groups = [group for group, points in zip(groups, timed, strict=True) if points][-MOST_PANELS:]
    if not groups:
        return None
    figure, panels = new_figure(1, len(groups), panel_height_in=3.4)
    intervals = list(dict.fromkeys(one.checkpoints for group in groups for one in group))
    for axes, group in zip(panels[0], groups, strict=True):
        _scatter(axes, group, intervals, unit)
    panels[0, 0].set_ylabel(f"peak ({unit.name})")
    _trade_legend(panels[0, 0], groups, intervals)
    shared_legend(figure, per_row=3)
    _sign(figure, groups[0][0])
    return figure


def _scatter(axes: Axes, group: Sequence[Recording], intervals: Sequence[str], unit: Unit) -> None:
    timed = [one for one in group if one.step is not None]
    for one in timed:
        marker = MARKERS[intervals.index(one.checkpoints)]
        look = {"color": style_for(one.cell.attention)["color"], "marker": marker, "markersize": 9, "linestyle": ""}
        look["markeredgecolor"] = "white"  # variants that cost the same overlap
        axes.plot(one.step["median_ms"], one.peak.total_bytes / unit.bytes, **look)
    without = [one for one in group if not one.measured]
    words = [f"{one.checkpoints}, {one.cell.attention}: {OUTCOME_WORDS[one.status]}" for one in without]
    axes.text(0.03, 0.98, "\n".join(words), transform=axes.transAxes, va="top", fontsize=SMALL_PT)
    axes.set_xlim(0, max(one.step["median_ms"] for one in timed) * ROOM_FOR_LABELS)
    axes.set_ylim(0, max(one.peak.total_bytes for one in timed) / unit.bytes * (ROOM_FOR_LABELS + 0.1 * len(words)))
    axes.set_title(f"{group[0].cell.precision}, context {group[0].cell.context_length}")
    axes.set_xlabel("training step (ms)")


def _trade_legend(axes: Axes, groups: Sequence[Sequence[Recording]], intervals: Sequence[str]) -> None:
    for attention in dict.fromkeys(one.cell.attention for group in groups for one in group):
        axes.plot([], [], label=f"{attention} attention", linestyle="", marker="s", color=style_for(attention)["color"])
    for marker, words in zip(MARKERS, intervals, strict=False):
        axes.plot([], [], label=words, linestyle="", marker=marker, color="white", markeredgecolor="black")


def _sign(figure: Figure, one: Recording) -> None:
    footnote(figure, one.machine, one.cell.size, f"batch {one.batch_size}", "one recording a cell")
