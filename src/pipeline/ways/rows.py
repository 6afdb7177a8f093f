"""Rows that stages of ways to train have in common: step times, and bytes by collective."""

from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.rows import Reading, Row, column, derived
from pipeline.cells.timed_rows import RanksStepRow
from pipeline.formulas.collectives import bus_factor
from pipeline.ways.cell import PHASES, TRAIN_STEP

BACKENDS = ("gloo", "nccl")


@dataclass(frozen=True, kw_only=True)
class WayStepTime(RanksStepRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    KEYS: ClassVar[tuple[str, ...]] = ("impl", "phase", "clock")

    phase: str = column(
        "part of the step, or all of it; communication: the wait that remains after backward",
        allowed=(*PHASES, TRAIN_STEP),
    )
    clock: str = column("host: a synchronize on both sides; cuda_events: by the GPU", allowed=("host", "cuda_events"))


@dataclass(frozen=True, kw_only=True)
class WayCapture(Row):
    """One profiled step of rank 0; a stage adds the lanes of its communication."""

    span_ms: float = column("from the start of the first event to the end of the last", minimum=0)
    computation_ms: float = column("time in which at least one event computed", minimum=0)
    computation_busy_pct: list[int] = column("for equal parts of the step: share of computing time", minimum=0)
    waiting_busy_pct: list[int] | None = column(
        "for equal parts of the step: share of time that communicates while nothing computes", minimum=0
    )
    not_by_nsys: str | None = column("why there is no capture by nsys too; empty where there is, or none was wanted")


@dataclass(frozen=True, kw_only=True)
class WayTraffic(Row):
    """Bytes of one kind of collective in one step; a stage adds `collective`."""

    KEYS = ("impl", "collective")

    calls: int = column("calls per step", minimum=0)
    measured_bytes: int = column("bytes of the calls' tensors", minimum=0)
    predicted_bytes: int | None = derived(
        "bytes by formula; empty where there is none: torch's and your own", minimum=0
    )
    sent_bytes: float = derived("least bytes that each rank must send for these calls", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the bytes by formula, and those that each rank must send."""
        row = reading.row
        sent_bytes = bus_factor(row["collective"], reading.cell.world_size) * row["measured_bytes"]
        return {"predicted_bytes": cls.predicted(reading), "sent_bytes": sent_bytes}

    @classmethod
    def predicted(cls, reading: Reading) -> int | None:
        """Return the bytes by formula; None where there is none."""
        raise NotImplementedError
