"""Rows of a real run on the CPU with small inputs."""

import pytest

from pipeline.stages.precision.cell import EXPERIMENTS, Cell, Settings
from pipeline.stages.precision.measure import measure

from ...records import rows_read

SETTINGS = Settings(d_model=256, input_rows=4)


@pytest.fixture(scope="session")
def cpu_rows_by_cell():
    cells = [Cell(experiment, "cpu") for experiment in EXPERIMENTS]
    return {cell: rows_read(measure, cell, SETTINGS) for cell in cells}


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def rows(request, cpu_rows_by_cell):
    """Return the rows of a module's EXPERIMENT, on each device."""
    cell = Cell(request.module.EXPERIMENT, request.param)
    return cpu_rows_by_cell.get(cell) or rows_read(measure, cell, SETTINGS)
