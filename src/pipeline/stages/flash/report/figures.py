"""The figure of the flash section."""

import math
from collections.abc import Mapping
from textwrap import fill

import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.cells.rows import WITH_FIGURES
from pipeline.report.figures import BLACK, WORD_PT, footnote, new_figure, style_for
from pipeline.report.table_rows import ok
from pipeline.report.tables import OUTCOME_WORDS, significant
from pipeline.stages.flash.report.facts import BOTH_PHASES, IMPLS, PROBLEM, WORDS, rate_below_peak, shape_label

MOST_PANELS, PANELS_A_LINE = 6, 3
LABEL_COLUMNS = 22


def rates(rows: pd.DataFrame, products: Mapping[str, float]) -> Drawing:
    """Draw TFLOP/s of forward + backward in one dtype: one panel per shape, one bar per kernel.

    The dashed line is the peak, the dotted one the rate of a matrix product alone, of `products` by data type. A kernel
    without a figure has its outcome in place of a bar.
    """
    both = rows[rows["phase"] == BOTH_PHASES]
    impls = [impl for impl in IMPLS if impl in set(ok(both)["impl"])]
    shapes = list(both.groupby(PROBLEM, sort=False))[:MOST_PANELS]
    columns = min(PANELS_A_LINE, len(shapes))
    lines = -(-len(shapes) // columns)
    peak = both.loc[both["peak_tflops_per_s"].idxmax()]
    product = rate_below_peak(peak, products)
    figure, panels = new_figure(lines, columns, panel_height_in=0.38 * len(impls) + 0.6, share_y=True)
    for axes, (_, group) in zip(panels.flat, shapes, strict=False):
        by_impl = group.set_index("impl").reindex(impls)
        axes.barh(range(len(impls)), by_impl["tflops_per_s"], color=[style_for(impl)["color"] for impl in impls])
        for place, (_, row) in enumerate(by_impl.iterrows()):
            text, at = _bar_label(row)
            beside = {"textcoords": "offset points", "va": "center", "fontsize": WORD_PT - 1}
            axes.annotate(text, (at, place), (3, 0), **beside)
        for rate, line in ((peak["peak_tflops_per_s"], "--"), (product, ":")):
            if math.isfinite(rate):
                axes.axvline(rate, color=BLACK, linewidth=1, linestyle=line)
        axes.set_title(shape_label(group.iloc[0]), fontsize=WORD_PT)
        axes.set_xlim(0, 1.05 * peak["peak_tflops_per_s"])
        axes.grid(visible=False, axis="y")
    names = [fill(WORDS[impl], LABEL_COLUMNS) for impl in impls]
    panels[0, 0].set_yticks(range(len(impls)), names)
    panels[0, 0].invert_yaxis()
    for axes in panels[:, 0]:
        axes.tick_params(axis="y", labelsize=WORD_PT - 2)
    for axes in panels[-1]:
        axes.set_xlabel("TFLOP/s")
    for axes in panels.flat[len(shapes) :]:
        axes.set_visible(False)
    footnote(
        figure,
        f"{peak['machine']}, torch {peak['torch']}",
        "batch × heads × length × head_dim",
        f"dashed: peak of {peak['peak_of']}, {significant(peak['peak_tflops_per_s'])} ({peak['peak_source']})",
        *([f"dotted: a matrix product alone, {significant(product)}"] if math.isfinite(product) else []),
    )
    return figure


def _bar_label(row: pd.Series) -> tuple[str, float]:
    """Return what stands beside a bar, and where the bar ends."""
    if row["status"] not in WITH_FIGURES:
        return OUTCOME_WORDS.get(row["status"], "not measured"), 0.0
    mark = f" {OUTCOME_WORDS['unstable']}" if row["status"] == "unstable" else ""
    return f"{significant(row['tflops_per_s'])}{mark}", row["tflops_per_s"]
