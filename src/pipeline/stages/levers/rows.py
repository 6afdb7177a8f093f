"""What the levers stage leaves: one row a cell, a whole training step."""

from dataclasses import dataclass

from pipeline.cells.rows import RowTypes, column
from pipeline.cells.timed_rows import GpuStepRow


@dataclass(frozen=True, kw_only=True)
class Step(GpuStepRow):
    """One training step, by the host clock, and what came of the first steps beside the eager model's."""

    first_step_ms: float = column("the first step, which compiles and tunes what there is to", positive=True)
    tokens: int = column("tokens a step: batch size times context length", minimum=1)
    tokens_per_s: float = column("tokens over the median time", positive=True)
    model_tflops_per_s: float = column(
        "FLOPs of the model's mathematics over the median time; what checkpointing repeats does not count",
        positive=True,
    )
    mfu_pct: float = column("model FLOPs utilization: of the peak in bf16", positive=True)
    peak_tflops_per_s: float = column("peak in bf16", positive=True)
    peak_source: str = column("where the peak comes from")
    peak_bytes: int | None = column(
        "most that torch's allocator had given out on the GPU after the first step", minimum=0
    )
    first_loss: float | None = column("loss of the first step, in nats; none where it is not finite")
    eager_first_loss: float | None = column("the same of the eager model, from the same weights and batch")
    loss: float | None = column("loss of the last checked step; none where it is not finite")
    eager_loss: float | None = column("the same of the eager model")


ROW_TYPES = RowTypes.one(Step)
