"""What the levers stage leaves: a whole training step with each combination of levers."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rates import peak_columns, step_rates
from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.stages.levers.cell import PRECISION


@dataclass(frozen=True, kw_only=True)
class Step(GpuStepRow):
    """One training step, by the host clock, and what came of the first steps beside the eager model's."""

    KEYS = ("levers",)

    levers: str = column("levers joined by +; eager: none of them; eager_again: none once more, after all others")
    first_step_ms: float = column("the first step, which compiles and tunes what there is to", positive=True)
    tokens: int = derived("tokens a step: batch size times context length", minimum=1)
    tokens_per_s: float = derived("tokens over the median time", positive=True)
    model_tflops_per_s: float = derived(
        "FLOPs of the model's mathematics over the median time; what checkpointing repeats does not count",
        positive=True,
    )
    mfu_pct: float = derived("model FLOPs utilization: of the peak in bf16", positive=True)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in bf16, where no data sheet is known", positive=True
    )
    peak_tflops_per_s: float = derived("peak in bf16", positive=True)
    peak_source: str = derived("where the peak comes from", allowed=("datasheet", "measured"))
    peak_bytes: int | None = column(
        "most that torch's allocator had given out on the GPU after the first step", minimum=0
    )
    first_loss: float | None = column("loss of the first step, in nats; none where it is not finite")
    loss: float | None = column("loss of the last checked step; none where it is not finite")

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add tokens, rates and the peak."""
        cell, settings = reading.cell, reading.settings
        shared = {"tokens": cls.tokens_a_step(reading), **peak_columns(reading, PRECISION)}
        step_flops = flops.train_step_flops(
            SIZES[cell.size], settings["vocab_size"], settings["batch_size"], cell.context_length
        )
        return super().timed_columns(reading, median_ms) | shared | step_rates(median_ms, step_flops, shared)

    @classmethod
    def tokens_a_step(cls, reading: Reading) -> int:
        """Return the tokens of a step."""
        return reading.settings["batch_size"] * reading.cell.context_length


ROW_TYPES = RowTypes.one(Step)
