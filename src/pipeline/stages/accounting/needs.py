"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.accounting.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: nothing is measured."""
    return 0.5
