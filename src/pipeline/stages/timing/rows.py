"""Rows of the timing stage: times by mode, phase and clock, and that of a compiled model's first step."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import Rates
from pipeline.cells.rows import Reading, RowTypes, column
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
class PhaseTime(GpuStepRow, Rates):
    """One phase of a training step, by one clock."""

    KEYS = ("mode", "phase", "clock", "impl")

    mode: str = column("eager; or compiled by torch.compile, measured after it", allowed=(EAGER, COMPILED))
    phase: str = column(
        "part of the step, or all of it; compile is the first step, which compiles",
        allowed=(FIRST_STEP, *PHASES),
    )
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    impl: str | None = column(
        "model: empty for the pipeline's own; the rates of others use its FLOPs", allowed=(PIPELINES,), or_subject=True
    )

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add tokens, rates and the peak; the first step, which compiles, has none."""
        found, cell, phase = super().timed_columns(reading, median_ms), reading.cell, reading.row["phase"]
        if phase == FIRST_STEP:
            return found
        step_flops = None
        if phase in FLOPS:
            sizes = reading.settings["vocab_size"], cell.batch_size, cell.context_length
            step_flops = FLOPS[phase](SIZES[cell.size], *sizes)
        return found | cls.rates(reading, median_ms, cell.precision, cls.tokens_per_step(reading), step_flops)


ROW_TYPES = RowTypes.one(PhaseTime)
