"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.peak_memory import peak_bytes
from pipeline.stages.memory.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: only training steps are timed in addition to being recorded."""
    return 1.5 + (2.5 * settings.budget_s if cell.mode == "train_step" else 0)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the peak of its step."""
    workload = cell.workload(settings.vocab_size, settings.batch_size, device_type="cpu")
    return peak_bytes(workload, cell.mode)
