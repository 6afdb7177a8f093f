"""Estimate a cell's time and memory before it is measured. Imports no torch: the workflow reads it."""

from pipeline.formulas.units import FP32_BYTES
from pipeline.stages.ops.cell import ADAMW, ELEMENT_BYTES, Cell, Settings

COMPILING_S = 8.0


def expected_s(cell: Cell, settings: Settings, on_gpu: bool) -> float:
    """Estimate the seconds that a cell takes, most of them to compile."""
    compiling_s = COMPILING_S if settings.compiled else 0.0
    return 2 + compiling_s + len(cell.row_keys()) * settings.budget_s


def needed_bytes(cell: Cell, settings: Settings) -> int:
    """Return the least memory that a cell needs on a CPU: inputs and a copy of them, and logits in two dtypes."""
    widths, element = cell.widths, ELEMENT_BYTES[cell.dtype]
    size, tokens = widths.size, widths.tokens
    inputs = {
        "rms_norm": 4 * tokens * size.d_model,
        "rotary": 2 * tokens * (size.attention_width + size.kv_width),
        "swiglu": 3 * tokens * size.d_ff,
        "linear_cross_entropy": (tokens + widths.vocab_size) * size.d_model,
        ADAMW: 4 * sum(widths.block_parameters),
    }[cell.op]
    logits = tokens * widths.vocab_size * (element + FP32_BYTES) if cell.op == "linear_cross_entropy" else 0
    return 2 * inputs * element + logits
