"""Rows of the sharding stage, for each optimizer: step times, memory by moment and kind, bytes sent."""

from dataclasses import dataclass

from pipeline.cells.rows import Reading, Row, RowTypes, column
from pipeline.formulas.parameters import parameter_bytes
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.training_state import KINDS
from pipeline.stages.sharding.cell import ALLOCATOR_KINDS, COLLECTIVES, IMPLS, MEASURES, MOMENTS, PEAKS
from pipeline.ways.rows import BACKENDS, WayStepTime, WayTraffic


@dataclass(frozen=True, kw_only=True)
class OptimizerRow(Row):
    """Columns of all rows: the optimizer, and what is measured."""

    impl: str = column(
        "adamw: whole state on every rank; sharded: ours; torch_zero: torch's ZeroRedundancyOptimizer",
        allowed=IMPLS,
        or_subject=True,
    )
    backend: str = column("backend of the process group", allowed=BACKENDS)
    measures: str = column("what the row measures", allowed=MEASURES)


@dataclass(frozen=True, kw_only=True)
class StepTime(WayStepTime, OptimizerRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    rank_difference: float | None = column(
        "largest difference of a weight between ranks after the timed steps", minimum=0
    )
    weight_difference: float = column(
        "largest difference of a weight from the first optimizer's after equally many steps", minimum=0
    )
    weight_tolerance: float = column("largest difference that rounding may cause", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Memory(OptimizerRow):
    """Bytes of one kind on the fullest rank at one moment of training."""

    KEYS = ("impl", "moment", "kind")

    moment: str = column("moment of training; the first step starts without optimizer state", allowed=MOMENTS)
    kind: str = column(
        "tensors by what they hold; or bytes that the allocator gave out (allocated) or that were requested, now or at"
        " the peak since the last moment",
        allowed=(*KINDS, *ALLOCATOR_KINDS, *PEAKS),
    )
    measured_bytes: int = column("bytes counted", minimum=0)
    predicted_bytes: int | None = column(
        "bytes by formula; empty for a peak from which a later one is predicted", minimum=0
    )


@dataclass(frozen=True, kw_only=True)
class Traffic(WayTraffic, OptimizerRow):
    """Bytes of one kind of collective in one step."""

    collective: str = column("collective of torch.distributed", allowed=COLLECTIVES)

    @classmethod
    def predicted(cls, reading: Reading) -> int | None:
        """Return the parameters' bytes: all gradients are reduced and, if the state is sharded, all parameters sent."""
        row = reading.row
        if row["impl"] not in IMPLS:
            return None
        is_sent = row["collective"] == "allreduce" or row["impl"] != "adamw"
        return parameter_bytes(SIZES[reading.cell.size], reading.settings["vocab_size"]) if is_sent else 0


@dataclass(frozen=True, kw_only=True)
class Timeline(OptimizerRow):
    """Memory of rank 0 over a warm step."""

    KEYS = ("impl", "measures")

    events: list[int] = column("allocations and releases so far", minimum=0)
    active_bytes: list[int] = column(
        "bytes in use after each of these: parameters, state and what the step adds", minimum=0
    )


ROW_TYPES = RowTypes(dict(zip(MEASURES, (StepTime, Memory, Traffic, Timeline), strict=True)), kind_column="measures")
