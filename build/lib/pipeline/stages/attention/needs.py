"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.attention import Shape, peak_bytes
from pipeline.stages.attention.cell import Cell, Settings


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes: on a CPU the C++ compiler takes nearly all of it."""
    return 2 + 0.08 * settings.passes if on_gpu else 20.0


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the peak of eager attention in fp32."""
    shape = Shape(settings.batch_size, 1, cell.seq_len, cell.head_dim, settings.is_causal)
    return peak_bytes(shape, element_bytes=4, device_type="cpu")
