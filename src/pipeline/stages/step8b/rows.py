"""Rows of the step8b stage: step times, where a step's time goes, what each fusion buys, and whether it is right."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rated_rows import Rates
from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.cells.timed_rows import BudgetRow
from pipeline.formulas import flops
from pipeline.formulas.sizes import SIZES
from pipeline.stages.step8b.cell import CHECKED, FUSIONS, IMPLS, MEASURES
from pipeline.ways.rows import WayStepTime


@dataclass(frozen=True, kw_only=True)
class MeasuredRow(Row):
    """Columns of all rows: what is measured, and of which implementation."""

    measures: str = column("what the row measures", allowed=MEASURES)
    impl: str = column(
        "torch_eager, torch_compiled: torch's own parts; *_selective: whose checkpoints keep attention's"
        " output; ours: the fused model under our FSDP; ours_fully_shard: under"
        " torch's; bf16_eager: the plain model in bf16, for comparison",
        allowed=tuple(dict.fromkeys((*IMPLS, *CHECKED))),
    )


@dataclass(frozen=True, kw_only=True)
class StepTime(WayStepTime, Rates, MeasuredRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    first_step_ms: float | None = column("the first step of the first turn, including compilation")
    needs_bytes: int | None = column("memory that a step needs by formula, including what layers keep", minimum=0)
    has_bytes: int | None = column(
        "memory that it may use: free on the fullest rank before it is built, less free_share", minimum=0
    )
    layers_that_keep_input: int | None = column(
        "layers that keep only their input and run again for the backward pass", minimum=0
    )
    layers_that_keep_attention: int | None = column("layers that also keep attention's output", minimum=0)
    layers_that_keep_qkv: int | None = column(
        "layers that also keep q, k, v and the sum before the feed-forward norm", minimum=0
    )
    layers_that_keep: int | None = column("layers that also keep the products of gate and up", minimum=0)

    @classmethod
    def timed_columns(cls, reading: Reading, median_ms: float) -> dict[str, Any]:
        """Add the rates of the whole step, with half of all scores counted in causal attention, and the peak."""
        found, cell = super().timed_columns(reading, median_ms), reading.cell
        if any(reading.row[name] != value for name, value in cls.WHOLE_STEP.items()):
            return found
        step_flops = flops.causal_train_step_flops(
            SIZES[cell.size], reading.settings["vocab_size"], 1, cell.context_length
        )
        rates = cls.rates(reading, median_ms, "bf16", cell.context_length, step_flops)  # of a rank
        of_all_ranks = {"tokens": found["tokens"], "tokens_per_s": cell.world_size * rates["tokens_per_s"]}
        return found | rates | of_all_ranks

    @classmethod
    def tokens_per_step(cls, reading: Reading) -> int:
        """Return the tokens of a step: a sequence on each rank."""
        return reading.cell.world_size * reading.cell.context_length


@dataclass(frozen=True, kw_only=True)
class BudgetItem(BudgetRow, MeasuredRow):
    """Where a step's time goes on the first rank: the time each kind of work adds to those before it."""

    KEYS = ("impl", "category")


@dataclass(frozen=True, kw_only=True)
class Fusion(MeasuredRow):
    """The fused model's step with one more fusion per row, in one process and with the same sharded weights."""

    KEYS = ("impl", "fusion")

    fusion: str = column(
        "what is added to the fusions before: nothing, our attention, a kernel, kept products", allowed=FUSIONS
    )
    step_ms: float = column("median step of the slowest rank", positive=True)
    peak_bytes: int | None = column("peak memory that torch allocated on the fullest rank", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Check(MeasuredRow):
    """Loss and gradients of a few layers, compared with the plain model's in fp32 from the same weights."""

    KEYS = ("impl",)

    loss: float = column("loss, in nats")
    loss_error: float = column("relative difference from the loss in fp32", minimum=0)
    gradient_error: float = column("norm of the difference of all gradients, over the norm in fp32", minimum=0)
    worst_gradient_error: float = column("the same for the worst parameter alone", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Descent(MeasuredRow):
    """The loss over steps on one batch, from the initial weights."""

    KEYS = ("impl",)

    first_loss: float = derived("loss of the first step, in nats")
    last_loss: float = derived("loss of the last step")
    losses: list[float] = column("loss of every step")

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the first and the last loss."""
        losses = reading.row.get("losses")
        return {"first_loss": losses[0], "last_loss": losses[-1]} if losses else {}


ROW_TYPES = RowTypes(
    dict(zip(MEASURES, (StepTime, BudgetItem, Fusion, Check, Descent), strict=True)), kind_column="measures"
)
