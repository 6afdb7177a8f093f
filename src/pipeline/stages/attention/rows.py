"""Rows of the attention stage: time and memory by mode, phase and clock."""

from dataclasses import dataclass

from pipeline.cells.rows import RowTypes, column
from pipeline.cells.timed_rows import GpuTimedRow
from pipeline.stages.attention.cell import MODES, PHASES


@dataclass(frozen=True, kw_only=True)
class PhaseTime(GpuTimedRow):
    """One phase of plain attention in one mode, by one clock, and the memory that the mode needs when it runs alone."""

    KEYS = ("mode", "phase", "clock")

    mode: str = column("eager, or compiled by torch.compile", allowed=MODES)
    phase: str = column("forward: the output; backward: the gradients of q, k and v", allowed=PHASES)
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    saved_bytes: int | None = column("tensors saved for the backward phase, counted one by one", minimum=0)
    before_backward_bytes: int | None = column(
        "in use on the GPU between forward and backward, inputs included", minimum=0
    )
    peak_bytes: int | None = column("peak in use on the GPU during forward and backward, inputs included", minimum=0)
    workspace_bytes: int | None = column("part of both that the matrix-product library keeps between calls", minimum=0)
    model_saved_bytes: int = column("saved_bytes of eager attention by formula", minimum=0)
    model_before_backward_bytes: int = column(
        "before_backward_bytes of eager attention by formula, without workspaces", minimum=0
    )
    model_peak_bytes: int = column("peak_bytes of eager attention by formula, without workspaces", minimum=0)
    memory_bytes: int = column("memory of the GPU or, without one, of the host", minimum=0)
    device_type: str = column("device that it ran on", allowed=("cpu", "cuda"))


ROW_TYPES = RowTypes.one(PhaseTime)
