"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.peak_memory import cpu_step_bytes
from pipeline.stages.profile.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes; nsys takes longer to write its report than to record."""
    if cell.profiler == "nsys" and not on_gpu:  # skipped
        return 0.5
    return (15 if on_gpu and cell.profiler != "torch" else 4) + 6 * settings.budget_s


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the peak of a training step."""
    work = settings.vocab_size, settings.batch_size, cell.context_length
    return cpu_step_bytes(cell.size, *work, cell.precision)
