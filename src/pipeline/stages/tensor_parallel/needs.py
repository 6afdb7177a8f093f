"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.tensor_parallel.cell import Cell, Settings
from pipeline.ways.needs import expected_s, training_bytes

__all__ = ["expected_s", "needed_bytes"]


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: a training step on each rank; a block is small."""
    if cell.what == "block":
        return 0
    return training_bytes(
        cell.size,
        cell.precision,
        cell.world_size,
        vocab_size=settings.vocab_size,
        batch_size_per_rank=cell.batch_size,
        context_length=cell.context_length,
    )
