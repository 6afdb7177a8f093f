"""Rows of the levers stage: a whole training step with each combination of levers."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import Rates
from pipeline.cells.rows import Reading, RowTypes, column
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES


@dataclass(frozen=True, kw_only=True)
class Step(GpuStepRow, Rates):
    """One training step, by the host clock, and its first losses."""

    KEYS = ("levers",)

    levers: str = column("levers joined by +; eager: none of them; eager_again: the eager step again, last")
    first_step_ms: float = column("the first step, including compilation and autotuning", positive=True)
    first_loss: float | None = column("loss of the first step, in nats; empty if not finite")
    loss: float | None = column("loss of the last checked step; empty if not finite")

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add tokens, rates and the peak."""
        sizes = reading.settings["vocab_size"], reading.settings["batch_size"], reading.cell.context_length
        step_flops = flops.train_step_flops(SIZES[reading.cell.size], *sizes)
        rates = cls.rates(reading, median_ms, reading.cell.precision, cls.tokens_per_step(reading), step_flops)
        return super().timed_columns(reading, median_ms) | rates


ROW_TYPES = RowTypes.one(Step)
