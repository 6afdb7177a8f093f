"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.memory.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: only training steps are timed beside being recorded."""
    return 1.5 + (2.5 * settings.budget_s if cell.mode == "train_step" else 0)
