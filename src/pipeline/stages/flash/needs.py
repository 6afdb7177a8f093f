"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.attention import peak_bytes
from pipeline.peers import version_of
from pipeline.stages.flash.cell import FA4, SUSTAINED, Cell, Settings

FA4_COMPILING_S = 20.0
ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes; at several heads, most of them go to compiling."""
    if cell.num_heads == 1:
        return 2 + 8 * settings.budget_s
    has_fa4 = on_gpu and version_of(FA4) is not None
    held = sum(impl != FA4 or has_fa4 for impl, _phase in SUSTAINED) if on_gpu else 0
    compiling_s = (10 if on_gpu else 15) + FA4_COMPILING_S * has_fa4
    return compiling_s + 20 * settings.budget_s + held * settings.sustained_s


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: the peak of eager attention, one of its rows."""
    return peak_bytes(cell.shape, element_bytes=ELEMENT_BYTES[cell.dtype], device_type="cpu")
