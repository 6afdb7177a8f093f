"""The figures of the accounting section: curves of the closed forms, nothing measured."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from pipeline.formulas.units import GB
from pipeline.report.figures import (
    COLOURS,
    LINES,
    MARKERS,
    footnote,
    lengths_axis,
    log_values_axis,
    new_figure,
    save,
    shared_legend,
)
from pipeline.report.section import counted
from pipeline.stages.accounting.questions import DEVICE_COUNTS

COMPUTED = "computed, not measured"
TIMES = {
    "compute_ms": "computing",
    "communication_ms": "both transfers, one after the other",
    "fsdp_ms": "gathering weights (FSDP)",
    "tensor_ms": "moving activations (tensor)",
}


def draw_all(fsdp: pd.DataFrame, mesh: pd.DataFrame, folder: Path) -> dict[str, str]:
    """Draw the figures for which there are rows; give the links by name, relative to the write-up."""
    drawn = {}
    if not fsdp.empty:
        drawn["fsdp"] = per_device(fsdp)
    if not mesh.empty and (mesh["case"] == "batch").any():
        drawn["mesh"] = mesh_times(mesh)
    for name, figure in drawn.items():
        save(figure, folder / f"{name}.svg")
    return {name: f"figures/accounting/{name}.svg" for name in drawn}


def per_device(rows: pd.DataFrame) -> Figure:
    """Draw the memory of each device over their number, a line a sequence length, and what a device holds."""
    figure, panels = new_figure()
    axes = panels[0, 0]
    for place, (seq_len, line) in enumerate(rows.groupby("seq_len")):
        line = line.sort_values("num_devices")
        label = counted(seq_len, "token")
        axes.plot(line["num_devices"], line["bytes_per_device"] / GB, label=label, **_style(place))
    capacity = rows["setting_device_memory_gb"].iloc[0]
    axes.axhline(capacity, color="black", linewidth=1, linestyle="--", label=f"{capacity:g} GB")
    lengths_axis(axes, DEVICE_COUNTS, "devices N")
    log_values_axis(axes, "memory of each device (GB)")
    shared_legend(figure, per_row=3)
    footnote(
        figure, COMPUTED, "XXL", f"batch {rows['batch_size'].iloc[0]}", "state and half of the activations sharded"
    )
    return figure


def mesh_times(rows: pd.DataFrame) -> Figure:
    """Draw the times of one block over the batch of a device: computing, either transfer, and both in turn."""
    figure, panels = new_figure()
    axes = panels[0, 0]
    line = rows[rows["case"] == "batch"].sort_values("tokens")
    for place, (column, label) in enumerate(TIMES.items()):
        axes.plot(line["tokens_per_device"], line[column], label=label, **{**_style(place), "marker": ""})
    given = rows[rows["case"] == "given"].iloc[0]
    axes.axvline(given["tokens_per_device"], color="black", linewidth=1, linestyle=":")
    axes.set_xlabel("tokens per device")
    axes.set_ylabel("time of one block (ms)")
    axes.set_ylim(bottom=0)
    axes.set_xlim(line["tokens_per_device"].min(), line["tokens_per_device"].max())
    shared_legend(figure, per_row=2)
    shape = f"X = {given['fsdp_size']:g} (FSDP), Y = {given['tensor_size']:g} (tensor)"
    footnote(figure, COMPUTED, "XXL", shape, "dotted: the least batch")
    return figure


def _style(place: int) -> dict[str, str]:
    """Return the look of the line at this place: what is drawn here has no name that other figures share."""
    return {
        "color": COLOURS[place % len(COLOURS)],
        "marker": MARKERS[place % len(MARKERS)],
        "linestyle": LINES[place % len(LINES)],
    }
