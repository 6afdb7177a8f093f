"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.collectives.cell import IN_PLACE, Cell, Settings

START_S = {"gloo": 2.0, "nccl": 8.0}
# Budgets per size: for bursts, single calls and graphs, and for filling and checking their buffers.
BUDGETS = 3.0


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: the budget applies to each size and each way to time it."""
    if cell.backend == "nccl" and not on_gpu:  # skipped
        return 0.5
    return START_S[cell.backend] + BUDGETS * settings.budget_s * len(settings.sizes_bytes(cell.backend))


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the largest buffers for each rank of a node."""
    if cell.backend != "gloo":
        return 0
    buffers = 1 if cell.collective in IN_PLACE else 2
    return buffers * cell.ranks_per_node * settings.sizes_bytes(cell.backend)[-1]
