"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import training_state
from pipeline.stages.levers.cell import Cell, Settings, names

COMPILING_S = 15.0
# Approximate FLOP/s of a step as written. A CPU without bf16 instructions multiplies bf16 in a plain loop.
GPU_RATES, CPU_RATES = {"fp32": 4.5e13, "bf16": 2e14}, {"fp32": 5e10, "bf16": 3e9}
GPU_ONLY = {"flash", "fp8", "fp8_rowwise", "graph"}


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: checked and timed steps of each of its turns."""
    step_flops = train_step_flops(SIZES[cell.size], settings.vocab_size, settings.batch_size, cell.context_length)
    step_s = step_flops / (GPU_RATES if on_gpu else CPU_RATES)[cell.precision]
    turn_s = 2 + settings.checked_steps * step_s + max(settings.budget_s, settings.steps * step_s)
    measured = [set(names(levers)) for levers in cell.turns]
    measured = [levers for levers in measured if on_gpu or not GPU_ONLY & levers]  # the others are skipped
    return 1 + sum(turn_s + COMPILING_S * ("compile" in levers) for levers in measured)


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the training state of the eager model."""
    return training_state(parameter_count(SIZES[cell.size], settings.vocab_size)).total_bytes
