"""Measure a precision cell: one experiment on one device."""

from typing import Any

import torch

from pipeline.errors import Skipped
from pipeline.instruments.machine.identity import cpu_model
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.precision.accumulation import measure_accumulation
from pipeline.stages.precision.autocast import measure_autocast
from pipeline.stages.precision.cell import Cell, Settings
from pipeline.stages.precision.layer_norm import measure_eps, measure_layer_norm


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch) -> list[dict[str, Any]]:
    """Return the rows of the cell's experiment; raises Skipped if the cell needs a GPU and there is none."""
    if cell.device == "cuda" and not torch.cuda.is_available():
        raise Skipped("no CUDA GPU")
    device = torch.device(cell.device)
    experiments = {
        "accumulation": lambda: measure_accumulation(device),
        "autocast": lambda: measure_autocast(device),
        "layer_norm": lambda: measure_layer_norm(device, settings.input_rows, settings.d_model),
        "layer_norm_eps": lambda: measure_eps(device, settings.d_model),
    }
    with stopwatch.measuring():
        rows = experiments[cell.experiment]()
    # The record names the machine by its GPUs, even for a cell that runs on the CPU.
    name = torch.cuda.get_device_name(device) if cell.device == "cuda" else cpu_model()
    return [{**row, "device_name": name} for row in rows]
