"""Estimate a cell's time before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.precision.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes."""
    return 1.0 if cell.device == "cpu" or on_gpu else 0.5
