"""Rows of the profile stage: times, kernel categories, kernels and attention of each range; one layer's timeline."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.rows import Reading, Row, RowTypes, column, derived
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.formulas.sizes import SIZES, ModelSize
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD_BY_PART, CLOCKS, PASSES, STEP_PARTS

CATEGORY = "kind of work; other if no rule matches"
SHARE = "share of the range's kernel time"


def share_pct(reading: Reading) -> float:
    """Return a row's share, in %, of its range's kernel time, which is the sum over the range's categories."""
    range_ms = sum(
        row["time_ms"] for row in reading.rows if (row["kind"], row["range"]) == ("category", reading.row["range"])
    )
    return 100 * reading.row["time_ms"] / range_ms


def attention_flops(size: ModelSize, batch_size: int, seq_len: int, direction: str) -> dict[str, int]:
    """Count the FLOPs of attention's phases, forward or backward, over all layers, with all S × S scores computed.

    A product takes 2·B·S²·d forward and twice that backward, once for each factor. The softmax of B·H·S² scores takes 5
    per score forward (maximum, difference, exponential, sum, division) and 4 backward (product with the gradient, its
    sum, difference, product); the mask one forward, a sum, and none backward. Scaling is left out.
    """
    products, per_score, per_masked = {"forward": (1, 5, 1), "backward": (2, 4, 0)}[direction]
    product = products * 2 * batch_size * seq_len**2 * size.attention_width
    scores = batch_size * size.num_heads * seq_len**2
    phases = dict(zip(ATTENTION_PHASES, (product, per_masked * scores, per_score * scores, product), strict=True))
    return {phase: size.num_layers * flops for phase, flops in phases.items()}


@dataclass(frozen=True, kw_only=True)
class RangeRow(Row):
    """Columns of all rows of one range."""

    kind: str = column("what the row is about", allowed=("time", "category", "kernel", "attention", "layer"))
    range: str = column(
        "a pass; a part of the train step; or one more backward pass, with ranges for its parts",
        allowed=(*PASSES, *STEP_PARTS, BACKWARD_BY_PART),
    )
    captured_by: str = column("profiler that made the capture", allowed=("nsys", "torch.profiler"))
    not_by_nsys: str | None = column("why nsys did not make it, if the profiler was auto")


@dataclass(frozen=True, kw_only=True)
class RangeTime(GpuStepRow, RangeRow):
    """The time of one range by one clock; one sample per run."""

    KEYS = ("range", "clock")

    clock: str = column(
        "host: without a profiler; profiled: by the host, in the capture; span: from the first kernel's start to the"
        " last one's end; busy: the part in which any kernel ran; kernel_sum: the sum of the kernels' durations",
        allowed=CLOCKS,
    )

    @classmethod
    def why_unstable(cls, reading: Reading) -> str | None:
        """Judge only the host's times: those of a capture show where time goes, not how long a step takes."""
        return super().why_unstable(reading) if reading.row["clock"] == "host" else None


@dataclass(frozen=True, kw_only=True)
class KernelTime(RangeRow):
    """The time of some kernels in one range."""

    count: float = column("calls in one run of the range", minimum=0)
    time_ms: float = column("summed kernel time in one run of the range; on a CPU, time in operators", minimum=0)


@dataclass(frozen=True, kw_only=True)
class RangeCategory(KernelTime):
    """One category of kernels in one range."""

    KEYS = ("range", "category")

    category: str = column(CATEGORY, allowed=CATEGORIES)
    share_pct: float = derived(SHARE, minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the share."""
        return {"share_pct": share_pct(reading)}


@dataclass(frozen=True, kw_only=True)
class RangeKernel(KernelTime):
    """One of the kernels that take the most time in one range. Several can have the same short name."""

    KEYS = ("range", "rank", "kernel")

    rank: int = column("rank among the range's kernels by time; 1 has the most", minimum=1)
    kernel: str = column("short name; on a CPU, an operator's")
    category: str = column(CATEGORY, allowed=CATEGORIES)
    median_us: float | None = column("median time of a call", minimum=0)
    std_us: float | None = column("standard deviation of the calls' times", minimum=0)
    share_pct: float = derived(SHARE, minimum=0)
    avg_us: float = derived("mean time of a call", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the share, and the time of a call."""
        row = reading.row
        return {"share_pct": share_pct(reading), "avg_us": 1e3 * row["time_ms"] / row["count"]}


@dataclass(frozen=True, kw_only=True)
class AttentionPhase(KernelTime):
    """One phase of attention in one range, summed over all layers."""

    KEYS = ("range", "phase")

    phase: str = column("part of attention", allowed=ATTENTION_PHASES)
    matmul_ms: float = column("part of time_ms in matrix products, without scaling, copies and casts", minimum=0)
    flops: int = derived("FLOPs by formula, with all scores computed", minimum=0)

    @classmethod
    def derive(cls, reading: Reading) -> dict[str, Any]:
        """Add the FLOPs of the phase."""
        row, cell = reading.row, reading.cell
        direction = "backward" if row["range"] == BACKWARD_BY_PART else "forward"
        flops = attention_flops(SIZES[cell.size], reading.settings["batch_size"], cell.context_length, direction)
        return {"flops": flops[row["phase"]]}


@dataclass(frozen=True, kw_only=True)
class LayerTimeline(RangeRow):
    """The forward pass of one layer, event by event."""

    KEYS = ("range", "layer")

    layer: str = column("the middle layer, in the last run of the range")
    events: str = column(
        "JSON: for each event its short name, category, path inside the layer, stream, start in µs after the first"
        " event, and duration in µs"
    )


ROW_TYPES = RowTypes(
    {
        "time": RangeTime,
        "category": RangeCategory,
        "kernel": RangeKernel,
        "attention": AttentionPhase,
        "layer": LayerTimeline,
    },
    kind_column="kind",
)
