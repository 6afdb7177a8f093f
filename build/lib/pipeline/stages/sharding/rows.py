"""Rows of the sharding stage, for each optimizer: step times, memory by moment and kind, bytes sent."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.cells.timed_rows import RanksStepRow
from pipeline.formulas.collectives import bus_factor
from pipeline.formulas.parameters import parameter_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import KINDS
from pipeline.stages.sharding.cell import (
    ALLOCATOR_KINDS,
    COLLECTIVES,
    IMPLS,
    MEASURES,
    MOMENTS,
    PEAKS,
)
from pipeline.ways.cell import PHASES, TRAIN_STEP


@dataclass(frozen=True, kw_only=True)
class OptimizerRow(Row):
    """Columns of all rows: the optimizer, and what is measured."""

    impl: str = column(
        "adamw: whole state on every rank; sharded: ours; torch_zero: torch's ZeroRedundancyOptimizer",
        allowed=IMPLS,
        or_subject=True,
    )
    backend: str = column("backend of the process group", allowed=("gloo", "nccl"))
    measures: str = column("what the row measures", allowed=MEASURES)


@dataclass(frozen=True, kw_only=True)
class StepTime(RanksStepRow, OptimizerRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    KEYS = ("impl", "phase", "clock")

    phase: str = column("part of the step, or all of it", allowed=(*PHASES, TRAIN_STEP))
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))
    rank_difference: float | None = column(
        "largest difference of a weight between ranks after the timed steps", minimum=0
    )
    weight_difference: float = column(
        "largest difference of a weight from the first optimizer's after as many steps", minimum=0
    )
    weight_tolerance: float = column("largest difference that rounding may cause", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Memory(OptimizerRow):
    """Bytes of one kind on the fullest rank at one moment of training."""

    KEYS = ("impl", "moment", "kind")

    moment: str = column("moment of training; the first step starts without optimizer state", allowed=MOMENTS)
    kind: str = column(
        "tensors by what they hold; or bytes that the allocator gave out (allocated) or that were requested: now, or at"
        " the peak since the last moment",
        allowed=(*KINDS, *ALLOCATOR_KINDS, *PEAKS),
    )
    measured_bytes: int = column("bytes counted", minimum=0)
    predicted_bytes: int | None = column(
        "bytes by formula; empty for the peak on which a later one is based", minimum=0
    )


@dataclass(frozen=True, kw_only=True)
class Traffic(OptimizerRow):
    """Bytes of one kind of collective in one step."""

    KEYS = ("impl", "collective")

    collective: str = column("collective of torch.distributed", allowed=COLLECTIVES)
    calls: int = column("calls per step", minimum=0)
    measured_bytes: int = column("bytes of the calls' tensors", minimum=0)
    predicted_bytes: int | None = derived("bytes by formula; empty for an optimizer of your own", minimum=0)
    sent_bytes: float = derived("least bytes that each rank must send for these calls", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the bytes by formula, and those that each rank must send."""
        row, cell = reading.row, reading.cell
        predicted = None
        if row["impl"] in IMPLS:  # all gradients are reduced, and parameters sent where the state is sharded
            is_sent = row["collective"] == "allreduce" or row["impl"] != "adamw"
            predicted = parameter_bytes(SIZES[cell.size], reading.settings["vocab_size"]) if is_sent else 0
        sent_bytes = bus_factor(row["collective"], cell.world_size) * row["measured_bytes"]
        return {"predicted_bytes": predicted, "sent_bytes": sent_bytes}


ROW_TYPES = RowTypes(dict(zip(MEASURES, (StepTime, Memory, Traffic), strict=True)), kind_column="measures")
