"""The figure of the levers section: how many times faster each combination is than the eager step."""

from itertools import cycle
from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import BLACK, MARKERS, new_figure, shared_legend, stamp, style_for
from pipeline.report.lever_words import joined
from pipeline.report.table_rows import ok
from pipeline.stages.levers.cell import EAGER
from pipeline.stages.levers.report.selection import models, rank, with_gain

LINE_IN, LABEL_COLUMNS = 0.38, 42
NO_BREAK = "\N{NO-BREAK SPACE}"


def gains(rows: pd.DataFrame, advised: str) -> Figure:
    """Draw the gain over the eager step, one line per combination, `advised` in bold, and one marker per model."""
    shown = pd.concat([ok(with_gain(model)) for model in models(rows)])
    shown = shown[shown["levers"] != EAGER]
    names = sorted(shown["levers"].unique(), key=rank)
    figure, panels = new_figure(panel_height_in=1 + LINE_IN * len(names))
    axes = panels[0, 0]
    contexts = shown["context_length"].unique()
    groups = shown.groupby(["size", "context_length"], sort=False)
    # Sizes differ little in colour.
    for ((size, context_length), model), marker in zip(groups, cycle(MARKERS), strict=False):
        style = style_for(size) | {"linestyle": "", "marker": marker}
        label = f"{size}, {context_length}" if len(contexts) > 1 else size
        axes.plot(model["gain"], model["levers"].map(names.index), label=label, **style)
    axes.axvline(1, color=BLACK, linewidth=1)
    axes.set_yticks(range(len(names)), [_label(name) for name in names], fontsize=9)
    for name, label in zip(names, axes.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if name == advised else "normal")
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("times as fast as the eager step")
    shared_legend(figure)
    facts = ["bf16 autocast", f"batch {shown['setting_batch_size'].iloc[0]}"]
    stamp(figure, shown, *facts, *(f"context {one}" for one in contexts if len(contexts) == 1), shown="medians")
    return figure


def _label(levers: str) -> str:
    """Write a combination in lines that break between levers."""
    unbroken = " + ".join(words.replace(" ", NO_BREAK) for words in joined(levers).split(" + "))
    return fill(unbroken.replace(" + ", f"{NO_BREAK}+ "), LABEL_COLUMNS).replace(NO_BREAK, " ")
