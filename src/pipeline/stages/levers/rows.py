"""Rows of the levers stage: a whole training step with each combination of levers."""

import statistics
from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import Rates
from pipeline.cells.rows import Reading, RowTypes, column
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.stages.levers.cell import EAGER, EAGER_AGAIN


@dataclass(frozen=True, kw_only=True)
class Step(GpuStepRow, Rates):
    """One training step, by the host clock, and its first losses."""

    KEYS = ("levers",)

    levers: str = column("levers joined by +; eager: none of them; eager_again: the eager step again, last")
    first_step_ms: float = column("the first step, including compilation and autotuning", positive=True)
    first_loss: float | None = column("loss of the first step, in nats; empty if not finite")
    loss: float | None = column("loss of the last checked step; empty if not finite")

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Judge the eager step, the base of all comparisons, also by how far its second measurement is off."""
        return super().why_unstable(reading) or (why_drifting(reading) if reading.row["levers"] == EAGER else None)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add tokens, rates and the peak."""
        sizes = reading.settings["vocab_size"], reading.settings["batch_size"], reading.cell.context_length
        step_flops = flops.train_step_flops(SIZES[reading.cell.size], *sizes)
        rates = cls.rates(reading, median_ms, reading.cell.precision, cls.tokens_per_step(reading), step_flops)
        return super().timed_columns(reading, median_ms) | rates


def why_drifting(reading: Reading) -> str | None:
    """Return by how much the eager step and its second measurement differ, if by more than its cell allows."""
    again = reading.sibling_row((), levers=EAGER_AGAIN)
    if again is None or not again.get("samples_ms"):
        return None
    medians = [statistics.median(row["samples_ms"]) for row in (reading.row, again)]
    drift = max(medians) / min(medians) - 1
    return f"measured once more, it differed by {drift:.0%}" if drift > reading.settings["unstable_rel_error"] else None


ROW_TYPES = RowTypes.one(Step)
