"""The figure of the accounting section: curves of the closed forms, nothing measured."""

import pandas as pd
from matplotlib.figure import Figure

from pipeline.report.figures import BLACK, footnote, new_figure, shared_legend, style_for, values_from_zero

TIMES = {
    "compute_ms": ("computing", "computation", "-"),
    "communication_ms": ("both transfers, one after the other", "communication", "-"),
    "fsdp_ms": ("gathering weights (FSDP)", "communication", "--"),
    "tensor_ms": ("moving activations (tensor)", "communication", ":"),
}


def mesh_times(rows: pd.DataFrame) -> Figure:
    """Draw the times of one block over the batch of a device: computing, either transfer, and both in turn."""
    line = rows[rows["case"] == "batch"].sort_values("tokens")
    figure, panels = new_figure()
    axes = panels[0, 0]
    for column, (label, what, style) in TIMES.items():
        look = {"color": style_for(what)["color"], "linestyle": style}
        axes.plot(line["tokens_per_device"], line[column], label=label, **look)
    given = rows[rows["case"] == "given"].iloc[0]
    axes.axvline(given["tokens_per_device"], color=BLACK, linewidth=1, linestyle=":")
    axes.set_xlabel("tokens per device")
    axes.set_ylabel("time of one block (ms)")
    axes.set_xlim(line["tokens_per_device"].min(), line["tokens_per_device"].max())
    values_from_zero(axes)
    shared_legend(figure)
    shape = f"X = {given['fsdp_size']:g} (FSDP), Y = {given['tensor_size']:g} (tensor)"
    footnote(figure, "computed, not measured", given["size"], shape, "dotted: the least batch")
    return figure
