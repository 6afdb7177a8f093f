"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.allreduce.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: the budget applies to each size, once for bursts and once for singles."""
    if cell.backend == "nccl" and not on_gpu:  # skipped
        return 0.5
    return 2 + 4 * settings.budget_s * len(settings.sizes_bytes())


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the largest buffer for each rank of a node."""
    return cell.ranks_per_node * settings.max_bytes if cell.backend == "gloo" else 0
