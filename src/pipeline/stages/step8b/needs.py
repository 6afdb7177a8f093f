"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.flops import causal_train_step_flops
from pipeline.formulas.peak_memory import cpu_step_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.stages.step8b.cell import COMPILED, FUSIONS, Cell, Settings
from pipeline.ways.needs import START_S

# Approximate FLOP/s of a rank in such a step.
GPU_RATE, CPU_RATE = 4e14, 2e10
COMPILING_S = 60.0


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: each turn's start and its steps at the full context."""
    step_flops = causal_train_step_flops(SIZES[cell.size], settings.vocab_size, 1, cell.context_length)
    step_s = step_flops / (GPU_RATE if on_gpu else CPU_RATE)
    steps = (2 + settings.steps) * len(cell.turns)
    if "ours" in cell.turns:
        steps += (1 + settings.fusion_steps) * len(FUSIONS)
    compiling_s = COMPILING_S * len({*COMPILED} & {*cell.turns})
    return compiling_s + len(cell.turns) * START_S + steps * step_s


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the whole model on each rank, before it is sharded."""
    return cell.world_size * cpu_step_bytes(cell.size, settings.vocab_size, 1, settings.checked_context, "fp32")
