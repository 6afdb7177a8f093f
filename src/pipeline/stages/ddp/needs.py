"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.data_parallel import training_bytes, training_s
from pipeline.stages.ddp.cell import VARIANTS, Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes."""
    return training_s(len(VARIANTS), settings.rounds * (settings.warmup_steps + settings.steps), on_gpu)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU."""
    return training_bytes(
        cell.size,
        cell.precision,
        cell.world_size,
        vocab_size=settings.vocab_size,
        batch_size_per_rank=cell.batch_size_per_rank,
        context_length=cell.context_length,
    )
