"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.sharding.cell import IMPLS, Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: its steps are of a size chosen for the machine."""
    steps = len(IMPLS) * settings.rounds * (settings.warmup_steps + settings.steps)
    return 2 + (0.4 if on_gpu else 0.05) * steps
