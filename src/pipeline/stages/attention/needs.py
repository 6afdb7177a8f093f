"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.attention.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: on a CPU nearly all of it is the C++ compiler's."""
    return 2 + 0.08 * settings.passes if on_gpu else 20.0
