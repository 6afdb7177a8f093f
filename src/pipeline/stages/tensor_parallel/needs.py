"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.peak_memory import cpu_step_bytes
from pipeline.stages.tensor_parallel.cell import Cell, Settings
from pipeline.ways.needs import expected_s

__all__ = ["expected_s", "needed_bytes"]


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: a training step on each rank; a block is small."""
    if cell.what == "block":
        return 0
    work = settings.vocab_size, cell.batch_size, cell.context_length
    return cell.world_size * cpu_step_bytes(cell.size, *work, cell.precision)
