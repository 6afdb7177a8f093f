"""The figure of the ceilings section: measured rates beside what the data sheet promises."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pipeline.report.figures import (
    BLACK,
    BLUE,
    lengths_axis,
    log_values_axis,
    mark_outcomes,
    new_figure,
    quartile_line,
    shared_legend,
    stamp,
    style_for,
)
from pipeline.report.table_rows import known, ok, with_rate_quartiles
from pipeline.stages.ceilings.cell import DTYPES
from pipeline.stages.ceilings.report.selection import BANDWIDTHS, bandwidths, products, promised


def rates(rows: pd.DataFrame) -> Figure | None:
    """Draw products over their sides beside bandwidths, each with what the data sheet promises; None without data."""
    sweep, moved = known(products(rows), "side"), ok(bandwidths(rows))
    draws = {draw: shown for draw, shown in ((_products, sweep), (_bandwidths, moved)) if len(ok(shown))}
    if not draws:
        return None
    figure, panels = new_figure(1, len(draws))
    for (draw, shown), axes in zip(draws.items(), panels[0], strict=True):
        draw(axes, shown)
    shared_legend(figure)
    shown = pd.concat(draws.values())
    on_sheets = any(not known(shown, f"datasheet_{quantity}").empty for quantity in ("tflops_per_s", "gb_per_s"))
    stamp(figure, shown, *(["dotted lines and strokes: data sheet"] if on_sheets else []))
    return figure


def _products(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw matmul TFLOP/s over the matrix side, one line per data type, with the data sheet's peaks as dots."""
    rows = with_rate_quartiles(rows, "tflops_per_s")
    for dtype in (name for name in DTYPES if name in set(ok(rows)["dtype"])):
        line = rows[rows["dtype"] == dtype]
        quartile_line(axes, line, "side", dtype, quantity="tflops_per_s")
        rate = promised(ok(line).iloc[0], "tflops_per_s")
        if rate is not None:
            axes.axhline(rate, color=style_for(dtype)["color"], linestyle=":", linewidth=1.2)
    lengths_axis(axes, rows["side"].astype(int), "side of the matrices")
    log_values_axis(axes, "TFLOP/s")
    axes.set_title("matrix products")
    mark_outcomes(axes, rows, "side", "dtype")


def _bandwidths(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the bandwidth of each way to move data, a line each; what the data sheet promises as a stroke."""
    lines = range(len(rows))
    axes.plot(rows["gb_per_s"], lines, marker="o", linestyle="", color=BLUE)
    for line, (_, row) in zip(lines, rows.iterrows(), strict=True):
        rate = promised(row, "gb_per_s")
        if rate is not None:
            axes.plot(rate, line, marker="|", markersize=14, color=BLACK)
    axes.set_yticks(list(lines), [BANDWIDTHS[kind] for kind in rows["kind"]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    log_values_axis(axes, "GB/s", "x")
    axes.set_xlim(rows["gb_per_s"].min() / 2, rows["gb_per_s"].max() * 2)
    axes.set_title("bandwidths")
