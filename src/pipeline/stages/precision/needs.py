"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.precision.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes."""
    return 1.0 if cell.device == "cpu" or on_gpu else 0.5
