"""Rows of a real run on the CPU with small inputs, and of a GPU-like one made from it."""

from dataclasses import asdict

import pytest

from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.report import frame
from pipeline.stages.precision.cell import EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure

from ...records import CPU, as_recorded, derived, rows_read, skipped_rows

SETTINGS = Settings(d_model=256, input_rows=4)


def table(rows_by_cell):
    """Make the rows of cells as the section gets them."""
    records = [
        {
            "cell": asdict(cell),
            "settings": asdict(SETTINGS),
            "rows": derived(cell, SETTINGS, as_recorded(cell, rows)),
            "machine": CPU,
        }
        for cell, rows in rows_by_cell.items()
    ]
    return frame.build(stages()["precision"], records)


@pytest.fixture(scope="session")
def cpu_rows_by_cell():
    cells = [Cell(experiment, "cpu") for experiment in EXPERIMENTS]
    return {cell: rows_read(measure, cell, SETTINGS, Stopwatch()) for cell in cells}


@pytest.fixture(scope="session")
def tables(cpu_rows_by_cell):
    """The rows of the section of a laptop without a GPU, and of a GPU: the same, but layer norm and losses in fp32."""

    def on_gpu(row):
        in_fp32 = row.get("component") in ("layernorm_input", "layernorm_output")
        in_fp32 = in_fp32 or row.get("detail") == "sum of the logits"
        return {**row, "device_name": "NVIDIA H200", **({"observed_dtype": "fp32"} if in_fp32 else {})}

    gpu = {Cell(cell.experiment, "cuda"): [*map(on_gpu, rows)] for cell, rows in cpu_rows_by_cell.items()}
    return {
        "laptop": table(cpu_rows_by_cell | {cell: skipped_rows(cell) for cell in gpu}),
        "gpu": table(cpu_rows_by_cell | gpu),
    }
