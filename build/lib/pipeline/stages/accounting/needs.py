"""Estimate a cell's time before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.accounting.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: nothing is measured."""
    return 0.5
