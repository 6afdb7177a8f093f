"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.peak_memory import cpu_step_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.stages.timing.cell import COMPILED, Cell, Settings

COMPILING_S = 15.0
# Approximate FLOP/s of training steps.
GPU_RATES = {"fp32": 4.5e13, "tf32": 1.2e14, "bf16": 2e14}
# A CPU without bf16 instructions multiplies bf16 in a plain loop.
CPU_RATES = {"fp32": 5e10, "bf16": 3e9}
PROFILED_STEPS = 4


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes."""
    if not on_gpu and cell.precision == "tf32":  # skipped
        return 0.5
    step_flops = train_step_flops(SIZES[cell.size], settings.vocab_size, cell.batch_size, cell.context_length)
    step_s = step_flops / (GPU_RATES if on_gpu else CPU_RATES)[cell.precision]
    sampling_s = max(settings.budget_s, settings.steps * step_s)
    mode_s = 2 * sampling_s + (cell.warmup_steps + (PROFILED_STEPS if on_gpu else 0)) * step_s
    return 2 + mode_s + (COMPILING_S + mode_s if COMPILED in cell.modes(settings) else 0)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the peak of a training step."""
    return cpu_step_bytes(cell.size, settings.vocab_size, cell.batch_size, cell.context_length, cell.precision)
