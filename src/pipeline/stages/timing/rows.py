"""What the timing stage leaves: a time by phase and clock, and of a compiled model that of its first step."""

from dataclasses import dataclass

from pipeline.cells.rows import RowTypes, column
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.stages.timing.cell import ALL_PHASES, SUBJECTS

PIPELINES = SUBJECTS.pipelines


@dataclass(frozen=True, kw_only=True)
class PhaseTime(GpuStepRow):
    """One phase of a training step, by one clock."""

    KEYS = ("phase", "clock", "impl")

    phase: str = column(
        "part of the step, or all of it; compile is the first step, which compiles",
        allowed=ALL_PHASES,
    )
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    impl: str | None = column(
        "model: empty for the pipeline's own; rates of others count its FLOPs", allowed=(PIPELINES,), or_subject=True
    )
    tokens: int | None = column("tokens a step: batch size times context length", minimum=1)
    tokens_per_s: float | None = column("tokens over the median time", positive=True)
    model_tflops_per_s: float | None = column("model FLOPs over the median time", positive=True)
    mfu_pct: float | None = column("model FLOPs utilization: of the peak in this precision", positive=True)
    peak_tflops_per_s: float | None = column("peak in this precision", positive=True)
    peak_source: str | None = column("where the peak comes from")
    peak_bytes: int | None = column("most that torch's allocator had given out on the GPU", minimum=0)


ROW_TYPES = RowTypes.one(PhaseTime)
