"""Rows of the fsdp stage, for each way to train: step times, memory by kind, bytes by collective, a captured step."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.formulas.training_state import KINDS
from pipeline.stages.fsdp import prediction
from pipeline.stages.fsdp.cell import COLLECTIVES, IMPLS, MEASURES
from pipeline.ways.rows import BACKENDS, WayCapture, WayStepTime, WayTraffic


@dataclass(frozen=True, kw_only=True)
class WayRow(Row):
    """Columns of all rows: the way to train, and what is measured."""

    impl: str = column(
        "none: no communication; ddp: gradients all-reduced; ddp_sharded: and the optimizer's state sharded; fsdp: our"
        " FSDP, one unit per block; fsdp_layers: one unit per matrix; torch_fsdp: torch's fully_shard, by block",
        allowed=IMPLS,
        or_subject=True,
    )
    backend: str = column("backend of the process group", allowed=BACKENDS)
    measures: str = column("what the row measures", allowed=MEASURES)


@dataclass(frozen=True, kw_only=True)
class StepTime(WayStepTime, WayRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    loss: float = column("mean loss over the ranks in one more step after the timed ones of the first turn", minimum=0)
    rank_difference: float | None = column(
        "largest difference of a gathered weight between ranks after these steps; empty without communication",
        minimum=0,
    )
    weight_share: float | None = column(
        "distance of a parameter from that of the first way that communicates, over how far that one moved, for the"
        " parameter where this is largest; rounding in bf16 alone can make it 1; empty without such a way",
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
        "bytes by formula; empty where there is none: torch's and your own, the sharded optimizer state, and the peak"
        " with it",
        minimum=0,
    )

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the bytes by formula; none for optimizer state on a CPU, where it includes the step counters."""
        row = reading.row
        is_unknown = row["kind"] == "optimizer_state" and _is_on_cpu(reading)
        found = prediction.memory_bytes(row["impl"], reading.cell, reading.settings["vocab_size"])
        return {"predicted_bytes": None if is_unknown else found.get(row["kind"])}


def _is_on_cpu(reading: Reading) -> bool:
    return reading.sibling_row(("measures", "impl", "kind"), kind="peak") is None


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
class Capture(WayCapture, WayRow):
    """One profiled step of rank 0: how long it computed, gathered and scattered, and how much of that was exposed."""

    KEYS = ("impl", "measures")

    gather_ms: float = column("time in which parameters were gathered", minimum=0)
    gather_exposed_ms: float = column("part of it in which nothing computed", minimum=0)
    scatter_ms: float = column("time in which gradients were reduced and scattered", minimum=0)
    scatter_exposed_ms: float = column("part of it in which nothing computed", minimum=0)
    each_gather_ms: list[float] | None = column("time of each gather, in order of start", minimum=0)
    each_gather_exposed_ms: list[float] | None = column(
        "for each gather: part of it in which nothing computed", minimum=0
    )
    gather_busy_pct: list[int] = column("for equal parts of the step: share of gathering time", minimum=0)
    scatter_busy_pct: list[int] = column("for equal parts of the step: share of scattering time", minimum=0)


ROW_TYPES = RowTypes(dict(zip(MEASURES, (StepTime, Memory, Traffic, Capture), strict=True)), kind_column="measures")
