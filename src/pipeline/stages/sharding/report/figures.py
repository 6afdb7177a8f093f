"""The figure of the sharding section."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import WORD_PT, new_figure, save, shared_legend, stamp, style_for
from pipeline.report.table_rows import ok
from pipeline.stages.sharding.cell import KINDS
from pipeline.stages.sharding.report.selection import MOMENT_WORDS, kinds, steps

WORDS = {"optimizer_state": "optimizer state"}


def draw_all(rows: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Draw the figure; give its link by name, relative to the write-up."""
    save(memory_by_moment(rows), folder / "memory.svg")
    return {"memory": "figures/sharding/memory.svg"}


def memory_by_moment(rows: pd.DataFrame) -> Figure:
    """Draw each optimizer's memory over a training run's moments, stacked by kind, with the peak up to the moment."""
    found = kinds(rows)
    cells = list(found.index.unique("cell_name"))
    moments = [name for name in MOMENT_WORDS if name in found.index.unique("moment")]
    figure, panels = new_figure(len(cells), 1, panel_height_in=4.4)
    unit, scale = ("GB", 1e9) if found["counted"].max() >= 1e9 else ("MB", 1e6)
    for axes, cell in zip(panels[:, 0], cells, strict=True):
        table = found.loc[cell] / scale
        places, labels = [], []
        for group, (optimizer, lines) in enumerate(table.groupby(level="optimizer", sort=False)):
            # The optimizer's name has a line of its own over its bars: beside them it would take half the figure.
            top = group * (len(moments) + 1)
            axes.text(0, top, f" {optimizer}", va="center", weight="bold", fontsize=WORD_PT)
            for place, moment in enumerate(moments, start=top + 1):
                places.append(place)
                labels.append(MOMENT_WORDS[moment])
                _bar(axes, lines.loc[(optimizer, moment)], place)
        axes.set_yticks(places, labels)
        axes.set_ylim(places[-1] + 0.6, -0.6)
        axes.set_xlabel(f"memory of the fullest rank ({unit})")
        axes.set_title(cell)
    shared_legend(figure, per_row=3)
    stamp(figure, ok(steps(rows)).assign(n=1), shown="one count a moment")
    return figure


def _bar(axes, line: pd.Series, place: float) -> None:
    left = 0.0
    for kind in (*KINDS, "other"):
        if line[kind] > 0:
            words = WORDS.get(kind, kind)
            axes.barh(place, line[kind], left=left, height=0.7, color=style_for(kind)["color"], label=words)
            left += line[kind]
    if pd.notna(line["peak"]):
        mark = {"marker": "D", "color": "black", "linestyle": "", "markersize": 5}
        axes.plot(line["peak"], place, label="peak on the way there", **mark)
