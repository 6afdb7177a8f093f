"""Rows of the fsdp stage, for each way to train: step times, memory by kind, bytes by collective, a captured step."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.formulas.training_state import KINDS
from pipeline.stages.fsdp import prediction
from pipeline.stages.fsdp.cell import COLLECTIVES, IMPLS, MEASURES
from pipeline.ways.rows import BACKENDS, WayStepTime, WayTraffic


@dataclass(frozen=True, kw_only=True)
class WayRow(Row):
    """Columns of all rows: the way to train, and what is measured."""

    impl: str = column(
        "none: no communication; ddp: gradients all-reduced; ddp_sharded: and the optimizer's state shared out; fsdp:"
        " our FSDP with a unit a block; fsdp_layers: with a unit a matrix; torch_fsdp: torch's fully_shard by block",
        allowed=IMPLS,
        or_subject=True,
    )
    backend: str = column("backend of the process group", allowed=BACKENDS)
    measures: str = column("what the row measures", allowed=MEASURES)


@dataclass(frozen=True, kw_only=True)
class StepTime(WayStepTime, WayRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    loss: float = column("mean loss of the ranks after the noted and timed steps of the first turn", minimum=0)
    rank_difference: float | None = column(
        "largest difference of a gathered weight between ranks after these steps; empty without communication",
        minimum=0,
    )
    weight_share: float | None = column(
        "how far a parameter is from that of the first way that communicates, over how far that one moved, of the"
        " parameter furthest off; rounding in bf16 alone may make it 1; empty without one",
        minimum=0,
    )


@dataclass(frozen=True, kw_only=True)
class Memory(WayRow):
    """Bytes of one kind on the fullest rank."""

    KEYS = ("impl", "kind")

    kind: str = column(
        "tensors by what they hold after a warm step, gradients included; or the allocator's peak in that step",
        allowed=(*KINDS, "peak"),
    )
    measured_bytes: int = column("bytes counted", minimum=0)
    predicted_bytes: int | None = derived(
        "bytes by formula; empty where there is none: torch's and your own, the shared-out optimizer state, the peak"
        " under it",
        minimum=0,
    )

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the bytes by formula; on a CPU none of the state, with which its step counters count."""
        row = reading.row
        is_unknown = row["kind"] == "optimizer_state" and _is_on_cpu(reading)
        found = prediction.memory_bytes(row["impl"], reading.cell, reading.settings["vocab_size"])
        return {"predicted_bytes": None if is_unknown else found.get(row["kind"])}


def _is_on_cpu(reading: Reading) -> bool:
    return reading.beside(("measures", "impl", "kind"), kind="peak") is None


@dataclass(frozen=True, kw_only=True)
class Traffic(WayTraffic, WayRow):
    """Bytes of one kind of collective in one step."""

    collective: str = column("collective of torch.distributed", allowed=COLLECTIVES)

    @classmethod
    def predicted(cls, reading: Reading) -> int | None:
        """Return the bytes by formula."""
        found = prediction.collective_bytes(reading.row["impl"], reading.cell, reading.settings["vocab_size"])
        return found.get(reading.row["collective"])


@dataclass(frozen=True, kw_only=True)
class Capture(WayRow):
    """One profiled step of rank 0: how long it computed, gathered and scattered, and what of that delayed it."""

    KEYS = ("impl", "measures")

    span_ms: float = column("from the start of the first event to the end of the last", minimum=0)
    computation_ms: float = column("time in which at least one event computed", minimum=0)
    gather_ms: float = column("time in which parameters were gathered", minimum=0)
    gather_exposed_ms: float = column("part of it in which nothing computed", minimum=0)
    scatter_ms: float = column("time in which gradients were reduced and scattered", minimum=0)
    scatter_exposed_ms: float = column("part of it in which nothing computed", minimum=0)
    computation_busy_pct: list[int] = column("for equal parts of the step: share of computing time", minimum=0)
    waiting_busy_pct: list[int] | None = column(
        "for equal parts of the step: share of time that communicates while nothing computes", minimum=0
    )
    each_gather_ms: list[float] | None = column("for each gather, in the order of their starts: its time", minimum=0)
    each_gather_exposed_ms: list[float] | None = column("for each: part of it in which nothing computed", minimum=0)
    gather_busy_pct: list[int] = column("for equal parts of the step: share of gathering time", minimum=0)
    scatter_busy_pct: list[int] = column("for equal parts of the step: share of scattering time", minimum=0)


ROW_TYPES = RowTypes(dict(zip(MEASURES, (StepTime, Memory, Traffic, Capture), strict=True)), kind_column="measures")
