"""The figures of the profile section."""

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.report.figures import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    names_axis,
    new_figure,
    save,
    stamp,
)
from pipeline.report.tables import OUTCOME_WORDS
from pipeline.stages.profile.cell import PASSES
from pipeline.stages.profile.report.selection import (
    WORDS,
    at_context,
    kernels,
    layer_events,
    of_cell,
    of_host_clock,
    of_kind,
    shares,
)
from pipeline.stages.profile.report.shown_names import shown_name

# One colour a category in every figure; communication and "other" are rare, so that near colours do.
COLOURS = dict(
    zip(CATEGORIES, (BLUE, PURPLE, VERMILION, GREEN, ORANGE, SKY, GREY, BLACK, "#8C510A", "#D9D9D9"), strict=True)
)
SHOWN_KERNELS = 8
NAME_LENGTH = 74


def draw_all(rows: pd.DataFrame, context_length: int, cell: dict, folder: Path) -> dict[str, str]:
    """Draw every figure for which there is data; give the links by figure name, relative to the write-up."""
    figures = {
        "categories": categories(rows, context_length),
        "layer": layer(rows, cell),
        "top_kernels": top_kernels(rows, cell),
    }
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/profile/{name}.svg" for name in drawn}


def categories(rows: pd.DataFrame, context_length: int) -> Figure:
    """Draw the categories' shares of each pass's kernel time as stacked bars: a row a precision, a column a pass."""
    here = at_context(rows, context_length)
    table = shares(here)
    precisions = list(table["precision"].unique())
    figure, panels = new_figure(len(precisions), len(PASSES), panel_height_in=2.9, share_y=True)
    for line, precision in zip(panels, precisions, strict=True):
        for axes, name in zip(line, PASSES, strict=True):
            panel = table[(table["precision"] == precision) & (table["range"] == name)]
            host = of_host_clock(here)
            _stack(axes, panel, host[(host["precision"] == precision) & (host["range"] == name)])
            axes.set_title(f"{WORDS[name]}, {precision}")
        line[0].set_ylabel("share of kernel time (%)")
    _category_legend(figure, [name for name in CATEGORIES if name in table and table[name].max() > 0])
    _stamp(figure, of_kind(here, "category"), f"context {context_length}")
    return figure


def _stack(axes: Axes, panel: pd.DataFrame, tried: pd.DataFrame) -> None:
    """Draw a bar a size; a size without a capture has its outcome in its place."""
    sizes = list(tried["size"])
    panel = panel.set_index("size").reindex(sizes)
    bottom = pd.Series(0.0, index=sizes)
    for name in [name for name in CATEGORIES if name in panel]:
        heights = 100 * panel[name].fillna(0)
        axes.bar(range(len(sizes)), heights, bottom=bottom, color=COLOURS[name], width=0.72)
        bottom += heights
    for place, (size, status) in enumerate(zip(sizes, tried["status"], strict=True)):
        if bottom[size] == 0:
            axes.text(place, 4, OUTCOME_WORDS[status], rotation=90, ha="center", va="bottom", fontsize=10)
    names_axis(axes, sizes, "")
    axes.set_ylim(0, 100)
    axes.tick_params(axis="x", labelrotation=45)


def layer(rows: pd.DataFrame, cell: dict) -> Figure | None:
    """Draw the timeline of one layer's forward pass, a row a precision: kernels, and the ranges that launched them."""
    cells = [{**cell, "precision": precision} for precision in of_kind(rows, "layer")["precision"].unique()]
    timelines = {one["precision"]: layer_events(rows, one) for one in cells}
    timelines = {precision: events for precision, events in timelines.items() if len(events)}
    if not timelines:
        return None
    figure, panels = new_figure(len(timelines), 1, panel_height_in=2.4)
    for axes, (precision, events) in zip(panels[:, 0], timelines.items(), strict=True):
        _draw_timeline(axes, events)
        axes.set_title(precision)
    panels[-1, 0].set_xlabel("time from the layer's first kernel on (µs)")
    present = {category for events in timelines.values() for category in events["category"]}
    _category_legend(figure, [name for name in CATEGORIES if name in present])
    words = (cell["size"], f"context {cell['context_length']}")
    _stamp(figure, of_cell(rows, cell).assign(setting_captured_rounds=1), *words, shown="the middle layer")
    return figure


def _draw_timeline(axes: Axes, events: pd.DataFrame) -> None:
    _draw_ranges(axes, events, events["path"].map(_part), height=2)
    narrow, end_us = _draw_ranges(axes, events, events["path"].map(_phase), height=1)
    axes.text(end_us, 1, f"  {', '.join(narrow)}", va="center", fontsize=9)
    for category, group in events.groupby("category"):
        bars = list(zip(group["start_us"], group["duration_us"], strict=True))
        axes.broken_barh(bars, (-0.4, 0.8), facecolors=COLOURS[category], edgecolor="white", linewidth=0.4)
    axes.set_yticks([0, 1, 2], ["kernels", "phase", "part"])
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
            axes.text((start_us + end_us) / 2, height, name, ha="center", va="center", fontsize=9)
        else:
            narrow.append(name)
    return narrow, end_us


def top_kernels(rows: pd.DataFrame, cell: dict) -> Figure | None:
    """Draw the kernels with the most time of inference and of a training step, as bars with the names over them."""
    of_passes = {name: of_cell(kernels(rows, name), cell).head(SHOWN_KERNELS) for name in ("inference", "train_step")}
    shown = {name: table for name, table in of_passes.items() if len(table)}
    if not shown:
        return None
    figure, panels = new_figure(len(shown), 1, panel_height_in=3.9)
    for axes, (name, table) in zip(panels[:, 0], shown.items(), strict=True):
        places = range(len(table) - 1, -1, -1)
        axes.barh(places, table["time_ms"], height=0.4, color=[COLOURS[found] for found in table["category"]])
        for place, row in zip(places, table.to_dict("records"), strict=True):
            words = f"{_clipped(shown_name(row['kernel']))}  ×{row['count']:.0f}"
            axes.text(0, place + 0.26, f" {words}", va="bottom", fontsize=9.5)
        axes.set_ylim(-0.4, len(table) - 0.2)
        axes.set_yticks([])
        axes.grid(axis="y", visible=False)
        axes.set_title(WORDS[name])
        axes.set_xlabel("time in one run (ms)")
    present = {category for table in shown.values() for category in table["category"]}
    _category_legend(figure, [name for name in CATEGORIES if name in present])
    _stamp(figure, of_cell(rows, cell), *_cell_words(cell))
    return figure


def _clipped(name: str) -> str:
    return name if len(name) <= NAME_LENGTH else f"{name[: NAME_LENGTH - 1]}…"


def _cell_words(cell: dict) -> tuple[str, ...]:
    return cell["size"], cell["precision"], f"context {cell['context_length']}"


def _category_legend(figure: Figure, names: list[str]) -> None:
    patches = [Patch(color=COLOURS[name], label=name) for name in names]
    figure.legend(handles=patches, loc="outside upper center", ncols=min(5, len(patches)), frameon=False, fontsize=11)


def _stamp(figure: Figure, rows: pd.DataFrame, *facts: str, shown: str = "mean") -> None:
    by = sorted(rows["captured_by"].dropna().unique())
    stamp(figure, rows.assign(n=rows["setting_captured_rounds"]), *facts, *by, shown=shown)
