"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from dataclasses import replace

from pipeline.formulas.flops import train_step_flops
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.stages.tensor_parallel.cell import IMPLS, Cell, Settings
from pipeline.ways.needs import START_S, training_bytes

GPU_RATE, CPU_RATE = {"fp32": 3e13, "bf16": 3e14}, {"fp32": 2e10, "bf16": 2e9}
OTHER_STEPS = 10  # to check and to profile


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes, including the start of its ranks."""
    size: ModelSize = SIZES[cell.size]
    if cell.what == "block":
        size = replace(size, num_layers=1)
    flops = train_step_flops(size, settings.vocab_size, cell.batch_size, cell.context_length)
    step_s = flops / (GPU_RATE if on_gpu else CPU_RATE)[cell.precision]
    steps = settings.rounds * (settings.warmup_steps + settings.steps) + OTHER_STEPS
    return START_S + len(IMPLS[cell.what]) * steps * step_s


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: a training step on each rank; a block is small."""
    if cell.what == "block":
        return 0
    return training_bytes(
        cell.size,
        cell.precision,
        cell.world_size,
        vocab_size=settings.vocab_size,
        batch_size_per_rank=cell.batch_size,
        context_length=cell.context_length,
    )
