"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.stages.ddp.cell import VARIANTS, Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: its steps are of a size chosen for the machine."""
    steps = len(VARIANTS) * settings.rounds * (settings.warmup_steps + settings.steps)
    return 3 + (0.4 if on_gpu else 0.05) * steps
