"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.timing.cell import Cell, Settings

COMPILING_S = 12.0


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes."""
    if cell.precision == "tf32" and not on_gpu:  # skipped
        return 0.5
    return 2 + 2 * settings.budget_s + (COMPILING_S if cell.mode == "compiled" else 0)
