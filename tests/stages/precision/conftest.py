"""Rows of a real run on the CPU with small inputs, of a GPU-like one made from it, and of cells without figures."""

from dataclasses import asdict

import pytest

from pipeline.instruments.machine.identity import SOFTWARE
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.registry import stages
from pipeline.report import frame
from pipeline.stages.precision.cell import EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure

from ...records import as_recorded, derived, rows_read

SETTINGS = Settings(d_model=256, input_rows=4)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def record(cell, rows):
    """Make the record of a cell, as far as tables are made of it."""
    machine = {"kind": "Test machine", "software": dict.fromkeys(SOFTWARE, "2.0")}
    rows = derived(cell, SETTINGS, as_recorded(cell, rows))
    return {"cell": asdict(cell), "settings": asdict(SETTINGS), "rows": rows, "machine": machine}


def table(rows_by_cell):
    """Make the rows of cells as the section gets them."""
    return frame.build(stages()["precision"], [record(*each) for each in rows_by_cell.items()])


def skipped(cell):
    return [{**key, "status": "skipped", "reason": "no CUDA GPU"} for key in cell.row_keys()]


@pytest.fixture(scope="session")
def cpu_rows_by_cell():
    cells = [Cell(experiment, "cpu") for experiment in EXPERIMENTS]
    return {cell: rows_read(measure, cell, SETTINGS, Stopwatch()) for cell in cells}


@pytest.fixture(scope="session")
def cuda_rows_by_cell(cpu_rows_by_cell):
    """Make what a GPU gives, as far as it is known: the same, but layer norm and all losses in fp32."""

    def on_gpu(row):
        in_fp32 = row.get("component") in ("layernorm_input", "layernorm_output")
        in_fp32 = in_fp32 or row.get("detail") == "sum of the logits"
        return {**row, "device_name": "NVIDIA H200", **({"observed_dtype": "fp32"} if in_fp32 else {})}

    return {Cell(cell.experiment, "cuda"): [on_gpu(row) for row in rows] for cell, rows in cpu_rows_by_cell.items()}


@pytest.fixture(scope="session")
def skipped_rows_by_cell():
    cells = [Cell(experiment, "cuda") for experiment in EXPERIMENTS]
    return {cell: skipped(cell) for cell in cells}


@pytest.fixture(scope="session")
def tables(cpu_rows_by_cell, cuda_rows_by_cell, skipped_rows_by_cell):
    """The rows of the section, by machine: a laptop without a GPU, a GPU host, and one where nothing ran."""
    return {
        "laptop": table(cpu_rows_by_cell | skipped_rows_by_cell),
        "gpu": table(cpu_rows_by_cell | cuda_rows_by_cell),
        "cuda_only": table(cuda_rows_by_cell),
        "nothing": table(skipped_rows_by_cell),
    }
