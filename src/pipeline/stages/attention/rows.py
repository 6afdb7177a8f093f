"""Rows of the attention stage: time and memory by mode, phase and clock."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.formulas.units import FP32_BYTES
from pipeline.stages.attention.cell import MODES, PHASES


@dataclass(frozen=True, kw_only=True)
class PhaseTime(GpuTimedRow):
    """One phase of plain attention in one mode, by one clock, and the memory that the mode needs when it runs alone."""

    KEYS = ("mode", "phase", "clock")
    WORK = ("batch_size", "is_causal")

    mode: str = column("eager, or compiled by torch.compile", allowed=MODES)
    phase: str = column("forward: the output; backward: the gradients of q, k and v", allowed=PHASES)
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    saved_bytes: int | None = column("tensors saved for the backward phase, counted one by one", minimum=0)
    before_backward_bytes: int | None = column(
        "in use on the GPU between forward and backward, inputs included", minimum=0
    )
    peak_bytes: int | None = column("peak in use on the GPU during forward and backward, inputs included", minimum=0)
    workspace_bytes: int | None = column(
        "part of these two that the matrix-product library keeps between calls", minimum=0
    )
    model_saved_bytes: int = derived("saved_bytes of eager attention by formula", minimum=0)
    model_before_backward_bytes: int = derived(
        "before_backward_bytes of eager attention by formula, without workspaces", minimum=0
    )
    model_peak_bytes: int = derived("peak_bytes of eager attention by formula, without workspaces", minimum=0)
    memory_bytes: int = column("memory of the GPU or, without one, of the host", minimum=0)
    device_type: str = column("device that it ran on", allowed=("cpu", "cuda"))

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the memory of eager attention by formula, even if none could be measured."""
        found, device_type = super().derive(reading), reading.row.get("device_type")
        if device_type is None:
            return found
        cell, settings = reading.cell, reading.settings
        shape = Shape(settings["batch_size"], 1, cell.seq_len, cell.head_dim, settings["is_causal"])
        return found | {
            "model_saved_bytes": attention.saved_bytes(shape, FP32_BYTES),
            "model_before_backward_bytes": attention.before_backward_bytes(shape, FP32_BYTES),
            "model_peak_bytes": attention.peak_bytes(shape, FP32_BYTES, device_type),
        }


ROW_TYPES = RowTypes.one(PhaseTime)
