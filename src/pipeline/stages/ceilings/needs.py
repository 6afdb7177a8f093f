"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.ceilings.cell import DTYPES, KINDS, Cell, Settings

# Set-up, warm-up and the first call of a data type or kind.
STARTING_S = 0.5


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: the budget of each ceiling that the machine has."""
    if cell.what == "matmul":
        dtypes = len(DTYPES) if on_gpu else 2
        return 1 + dtypes * (STARTING_S + len(settings.sides()) * settings.budget_s)
    if not on_gpu and cell.what in ("host_link", "peer_link"):  # skipped
        return STARTING_S
    return 1 + len(KINDS[cell.what]) * (STARTING_S + settings.budget_s)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: three fp32 matrices for a product, two tensors for a copy."""
    return {"matmul": 3 * 4 * settings.max_side**2, "memory": 2 * settings.memory_bytes}.get(cell.what, 0)
