"""What the timing stage leaves: a time by mode, phase and clock, of a compiled model also that of its first step."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rates import peak_columns, step_rates
from pipeline.cells.rows import Reading, RowTypes, column, derived
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.stages.timing.cell import COMPILED, EAGER, FIRST_STEP, PHASES, SUBJECTS

PIPELINES = SUBJECTS.pipelines
# The optimizer moves bytes and has no rates.
FLOPS = {
    "forward": flops.forward_flops,
    "backward": flops.backward_flops,
    "train_step": flops.train_step_flops,
}


@dataclass(frozen=True, kw_only=True)
class PhaseTime(GpuStepRow):
    """One phase of a training step, by one clock."""

    KEYS = ("mode", "phase", "clock", "impl")

    mode: str = column("eager; or compiled by torch.compile, measured after it", allowed=(EAGER, COMPILED))
    phase: str = column(
        "part of the step, or all of it; compile is the first step, which compiles",
        allowed=(FIRST_STEP, *PHASES),
    )
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    impl: str | None = column(
        "model: empty for the pipeline's own; rates of others count its FLOPs", allowed=(PIPELINES,), or_subject=True
    )
    tokens: int | None = derived("tokens a step: batch size times context length", minimum=1)
    tokens_per_s: float | None = derived("tokens over the median time", positive=True)
    model_tflops_per_s: float | None = derived("model FLOPs over the median time", positive=True)
    mfu_pct: float | None = derived("model FLOPs utilization: of the peak in this precision", positive=True)
    measured_peak_tflops_per_s: float | None = column(
        "rate of a large matrix product in this precision, where no data sheet is known", positive=True
    )
    peak_tflops_per_s: float | None = derived("peak in this precision", positive=True)
    peak_source: str | None = derived("where the peak comes from", allowed=("datasheet", "measured"))
    peak_bytes: int | None = column("most that torch's allocator had given out on the GPU", minimum=0)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add tokens, rates and the peak; the first step alone, which compiles, has none."""
        found, cell = super().timed_columns(reading, median_ms), reading.cell
        if reading.row["phase"] == FIRST_STEP:
            return found
        shared = {"tokens": cls.tokens_a_step(reading), **peak_columns(reading, cell.precision)}
        count = FLOPS.get(reading.row["phase"])
        if count is None:
            return found | shared
        step_flops = count(SIZES[cell.size], reading.settings["vocab_size"], cell.batch_size, cell.context_length)
        return found | shared | step_rates(median_ms, step_flops, shared)

    @classmethod
    def tokens_a_step(cls, reading: Reading) -> int:
        """Return the tokens of a step."""
        return reading.cell.batch_size * reading.cell.context_length


ROW_TYPES = RowTypes.one(PhaseTime)
