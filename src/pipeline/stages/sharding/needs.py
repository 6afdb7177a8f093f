"""What a cell takes, told before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.activations import Workload
from pipeline.formulas.peak_memory import peak_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.stages.sharding.cell import IMPLS, Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Return about how many seconds a cell takes: its steps are of a size chosen for the machine."""
    steps = len(IMPLS) * settings.rounds * (settings.warmup_steps + settings.steps)
    return 2 + (0.4 if on_gpu else 0.05) * steps


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell takes on a CPU: what a training step has at its height, on every rank."""
    workload = Workload(
        SIZES[cell.size],
        settings.vocab_size,
        settings.batch_size_per_rank,
        settings.context_length,
        cell.precision,
        device_type="cpu",
    )
    return cell.world_size * peak_bytes(workload, "train_step")
