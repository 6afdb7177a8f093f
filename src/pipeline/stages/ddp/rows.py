"""Rows of the ddp stage: times of each variant's step by phase and clock, and one captured step of some variants."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.stages.ddp.cell import CAPTURED_STEP, IMPLS, PROFILER
from pipeline.ways.cell import PHASES, TRAIN_STEP
from pipeline.ways.rows import BACKENDS, WayCapture, WayStepTime


@dataclass(frozen=True, kw_only=True)
class VariantRow(Row):
    """Columns that name a variant."""

    impl: str = column(
        "way to average gradients; none: no communication; torch: torch's DDP with its defaults; torch_tuned: the same"
        " with broadcast_buffers=False and gradient_as_bucket_view=True",
        allowed=IMPLS,
        or_subject=True,
    )
    bucket_size_mb: int | None = column("bucket size in MB of 2^20 bytes; empty without buckets", minimum=1)


@dataclass(frozen=True, kw_only=True)
class StepTime(WayStepTime, VariantRow):
    """Time of a training step or of one of its phases by one clock; each sample is the slowest rank's."""

    KEYS = ("impl", "bucket_size_mb", "phase", "clock")

    backend: str = column("backend of the process group", allowed=BACKENDS)
    peak_bytes: int | None = column(
        "peak allocated memory in warm steps, on the fullest rank; empty on a CPU", minimum=0
    )
    gradient_bytes: int = column("bytes of a rank's gradients", minimum=0)
    all_reduces: int = column("all-reduces of gradients per step", minimum=0)
    all_reduce_bytes: int = column("bytes that these all-reduces carry", minimum=0)
    rank_difference: float = column("largest difference of a weight between ranks after the timed steps", minimum=0)
    variant_difference: float | None = column(
        "largest difference of a weight from the first variant that averages; empty without one", minimum=0
    )
    weight_tolerance: float = column("largest difference that rounding may cause", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CapturedStep(WayCapture, VariantRow):
    """One profiled step of rank 0: how long it computed, communicated, and did both."""

    KEYS = ("impl", "bucket_size_mb", "phase", "clock")

    phase: str = column("the captured step", allowed=(CAPTURED_STEP,))
    clock: str = column("the profiler", allowed=(PROFILER,))
    communication_ms: float = column("time in which at least one event communicated", minimum=0)
    hidden_ms: float = column("time in which at least one event computed and one communicated", minimum=0)
    hidden_pct: float | None = derived("hidden_ms over communication_ms; empty without communication", minimum=0)
    communication_busy_pct: list[int] = column("for equal parts of the step: share of communicating time", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the share of the communication that was hidden."""
        communication_ms = reading.row.get("communication_ms")
        return {"hidden_pct": 100 * reading.row["hidden_ms"] / communication_ms} if communication_ms else {}


ROW_TYPES = RowTypes(
    {**dict.fromkeys((TRAIN_STEP, *PHASES), StepTime), CAPTURED_STEP: CapturedStep},
    kind_column="phase",
)
