"""The figure of the attention section."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Drawing

from pipeline.formulas import attention
from pipeline.report.figures import (
    BLACK,
    footnote,
    lengths_axis,
    log_values_axis,
    mark_outcomes,
    new_figure,
    shared_legend,
    style_for,
)
from pipeline.report.table_rows import known
from pipeline.stages.attention.cell import MODES
from pipeline.stages.attention.report.facts import ELEMENT_BYTES, Limit, problems, shape_of

WORDS = {"peak_bytes": "peak", "saved_bytes": "saved"}


def memory(rows: pd.DataFrame, limit: Limit) -> Drawing:
    """Draw bytes over length at one head_dim: lines by formula, the limit, and markers as counted.

    Markers are of peaks; on a CPU, where no peak is counted, of what is saved for backward.
    """
    figure, panels = new_figure()
    axes = panels[0, 0]
    shapes = problems(rows, "eager")
    lengths = np.geomspace(shapes["seq_len"].min(), shapes["seq_len"].max(), 50).astype(int)
    grid = [shape_of(shapes.iloc[0], length) for length in lengths.tolist()]
    by_formula = {
        "peak_bytes": [attention.peak_bytes(shape, ELEMENT_BYTES, limit.device_type) for shape in grid],
        "saved_bytes": [attention.saved_bytes(shape, ELEMENT_BYTES) for shape in grid],
    }
    grey = style_for("eager")["color"]
    for (column, sizes), line in zip(by_formula.items(), ("-", ":"), strict=True):
        axes.plot(lengths, np.array(sizes) / 1e9, color=grey, linestyle=line, label=f"{WORDS[column]}, by formula")
    counted = "peak_bytes" if len(known(rows, "peak_bytes")) else "saved_bytes"
    for mode in MODES:
        seen = known(problems(rows, mode), counted)
        if len(seen):
            look = style_for(mode) | {"linestyle": ""}
            axes.plot(seen["seq_len"], seen[counted] / 1e9, label=f"{WORDS[counted]}, {mode}", **look)
    axes.axhline(limit.memory_bytes / 1e9, color=BLACK, linewidth=1, linestyle="--", label="can be allocated")
    lengths_axis(axes, shapes["seq_len"], "sequence length")
    log_values_axis(axes, "memory (GB)")
    backward = rows[rows["phase"] == "backward"]
    mark_outcomes(axes, backward[backward["status"] == "oom"], "seq_len", "mode")
    shared_legend(figure)
    row = rows.iloc[0]
    setting = f"batch {row['setting_batch_size']}, one head of {limit.shape.head_dim}"
    footnote(figure, f"{row['machine']}, torch {row['torch']}", "fp32", setting, "saved: for backward")
    return figure
