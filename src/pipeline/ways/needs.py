"""Estimate time (by rule of thumb) and memory (in closed form) of training on several ranks before measuring it.

Imports no torch: the workflow reads it.
"""

from typing import Any

from pipeline.formulas.peak_memory import cpu_step_bytes
from pipeline.ways.cell import RanksCell, RanksSettings

START_S = 3.0
# For a model size that suits the machine.
GPU_STEP_S, CPU_STEP_S = 0.4, 0.05
# Other time per way, in steps: building it in every turn and, on a GPU, reading its trace.
GPU_OTHER_STEPS, CPU_OTHER_STEPS = 25, 3


def needed_bytes(cell: RanksCell, settings: RanksSettings) -> int:
    """Return the minimum bytes that a cell needs on a CPU: the peak of a training step, times the ranks."""
    work = settings.vocab_size, cell.batch_size_per_rank, cell.context_length
    return cell.world_size * cpu_step_bytes(cell.size, *work, cell.precision)


def expected_s(cell: Any, settings: Any, on_gpu: bool) -> float:
    """Estimate the seconds that a cell of ways to train takes, including the start of its ranks.

    settings: needs rounds, warmup_steps and steps, as in `RanksSettings`.
    """
    step_s, other_steps = (GPU_STEP_S, GPU_OTHER_STEPS) if on_gpu else (CPU_STEP_S, CPU_OTHER_STEPS)
    steps = settings.rounds * (settings.warmup_steps + settings.steps)
    return START_S + len(cell.row_keys()) * (steps + other_steps) * step_s
