"""Rows of the profile stage: times, kernel categories, kernels and attention of each range; one layer's timeline."""

from dataclasses import dataclass

from pipeline.cells.rows import Row, RowTypes, column
from pipeline.cells.timed_rows import GpuStepRow
from pipeline.instruments.profilers.kernel_categories import CATEGORIES
from pipeline.stages.profile.cell import ATTENTION_PHASES, BACKWARD_BY_PART, CLOCKS, PASSES, STEP_PARTS

CATEGORY = "kind of work; other if no rule matches"
COUNT = "calls in one run of the range"
TIME = "summed kernel time in one run of the range; on a CPU time in operators"
SHARE = "share of the range's kernel time"


@dataclass(frozen=True, kw_only=True)
class RangeRow(Row):
    """Columns of all rows of one range."""

    kind: str = column("what the row is about", allowed=("time", "category", "kernel", "attention", "layer"))
    range: str = column(
        "a pass; a part of the train step; or one more backward pass, with ranges for its parts",
        allowed=(*PASSES, *STEP_PARTS, BACKWARD_BY_PART),
    )
    captured_by: str = column("profiler that made the capture", allowed=("nsys", "torch.profiler"))
    not_by_nsys: str | None = column("why nsys did not make it although the profiler was auto")


@dataclass(frozen=True, kw_only=True)
class RangeTime(GpuStepRow, RangeRow):
    """The time of one range by one clock; one sample per run."""

    KEYS = ("range", "clock")

    clock: str = column(
        "host: without a profiler; profiled: by the host, in the capture; span: from the first kernel's start to the"
        " last one's end; busy: the part in which any kernel ran; kernel_sum: the sum of the kernels' durations",
        allowed=CLOCKS,
    )


@dataclass(frozen=True, kw_only=True)
class RangeCategory(RangeRow):
    """One category of kernels in one range."""

    KEYS = ("range", "category")

    category: str = column(CATEGORY, allowed=CATEGORIES)
    count: float = column(COUNT, minimum=0)
    time_ms: float = column(TIME, minimum=0)
    share_pct: float = column(SHARE, minimum=0)


@dataclass(frozen=True, kw_only=True)
class RangeKernel(RangeRow):
    """One of the kernels with the most time in one range. Several can have the same short name."""

    KEYS = ("range", "rank", "kernel")

    rank: int = column("rank among the range's kernels by time; 1 has the most", minimum=1)
    kernel: str = column("short name; on a CPU an operator's")
    category: str = column(CATEGORY, allowed=CATEGORIES)
    count: float = column(COUNT, positive=True)
    time_ms: float = column(TIME, minimum=0)
    share_pct: float = column(SHARE, minimum=0)
    avg_us: float = column("mean time of a call", minimum=0)


@dataclass(frozen=True, kw_only=True)
class AttentionPhase(RangeRow):
    """One phase of attention in one range, summed over all layers."""

    KEYS = ("range", "phase")

    phase: str = column("part of attention", allowed=ATTENTION_PHASES)
    count: float = column(COUNT, minimum=0)
    time_ms: float = column(TIME, minimum=0)
    matmul_ms: float = column("part of time_ms in matrix products, without scaling, mask, copies and casts", minimum=0)
    flops: int = column("FLOPs by formula, with all scores computed", positive=True)


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
