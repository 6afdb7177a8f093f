"""What the memory stage leaves of a recording: peaks, timeline, largest allocations, and the time of a step."""

from dataclasses import dataclass

from pipeline.cells.rows import Row, RowTypes, column
from pipeline.cells.timed_rows import TimedRow
from pipeline.formulas.peak_memory import CATEGORIES

CATEGORY = "what the memory holds: whose tensor, else by the phase that made it and how long it stayed"
EVENT = "allocations and releases before it"


@dataclass(frozen=True, kw_only=True)
class RecordingRow(Row):
    """What is of one recording of two steps."""

    kind: str = column(
        "what the row tells", allowed=("peak", "timeline", "largest", "saved", "residual", "allocator", "time")
    )
    device_type: str = column("device that the model was on", allowed=("cpu", "cuda"))


@dataclass(frozen=True, kw_only=True)
class PhasePeak(RecordingRow):
    """The height of one phase of a step, and what it is made of. Of a cell that failed it is the only row."""

    KEYS = ("step", "phase")

    step: int = column("step, from 1 on; 0 builds the model", minimum=0)
    phase: str = column("part of the step", allowed=("build", "forward", "backward", "optimizer"))
    begin_event: int = column(f"{EVENT}: of the phase's begin", minimum=0)
    end_event: int = column(f"{EVENT}: of its end", minimum=0)
    peak_event: int = column(f"{EVENT}: of its peak", minimum=0)
    peak_bytes: int = column("most memory that was active at once", minimum=0)
    parameters_bytes: int = column("of the peak: parameters", minimum=0)
    gradients_bytes: int = column("of the peak: gradients of parameters", minimum=0)
    optimizer_state_bytes: int = column("of the peak: AdamW's moments", minimum=0)
    activations_bytes: int = column("of the peak: what is kept for the backward pass, or recomputed in it", minimum=0)
    temporaries_bytes: int = column("of the peak: what is released again before recording ends", minimum=0)
    other_bytes: int = column("of the peak: the batch, tables of the rotations, libraries' workspaces", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CategoryTimeline(RecordingRow):
    """The active memory of one category over the recording, at chosen events."""

    KEYS = ("category",)

    category: str = column(CATEGORY, allowed=CATEGORIES)
    events: list[int] = column(f"{EVENT}: of each moment", minimum=0)
    active_bytes: list[int] = column("active memory of the category at each moment", minimum=0)


@dataclass(frozen=True, kw_only=True)
class LargestAllocations(RecordingRow):
    """Equal allocations by one line, of the last step or outliving it; those of the largest size first."""

    KEYS = ("rank",)

    rank: int = column("place by size, the first is the largest", minimum=1)
    size_bytes: int = column("bytes of one of them", minimum=0)
    count: int = column("how many there are", minimum=1)
    category: str = column(CATEGORY, allowed=CATEGORIES)
    location: str = column("line of the model that made them, with the line that called that one")
    code: str = column("what stands in that line; empty outside the model")


@dataclass(frozen=True, kw_only=True)
class SavedActivations(RecordingRow):
    """What is kept at the end of the last forward pass."""

    activations_bytes: int = column("activations that are active then", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ResidualStream(RecordingRow):
    """The sums that the blocks make in the last forward pass, which are the residual stream."""

    size_bytes: int | None = column("bytes of the largest; none where no sum is known", minimum=0)
    smallest_bytes: int | None = column("bytes of the smallest; none where no sum is known", minimum=0)
    count: int = column("how many there are: two a block", minimum=0)


@dataclass(frozen=True, kw_only=True)
class AllocatorPeaks(RecordingRow):
    """The peaks that CUDA's caching allocator counted itself."""

    requested_peak_bytes: int = column("most bytes that were asked for at once", minimum=0)
    allocated_peak_bytes: int = column("most bytes in whole blocks", minimum=0)
    reserved_peak_bytes: int = column("most bytes taken from the device", minimum=0)
    device_bytes: int = column("all memory of the device", positive=True)


@dataclass(frozen=True, kw_only=True)
class StepTime(TimedRow, RecordingRow):
    """Whole training steps by the host clock, without recording."""


ROW_TYPES = RowTypes(
    {
        "peak": PhasePeak,
        "timeline": CategoryTimeline,
        "largest": LargestAllocations,
        "saved": SavedActivations,
        "residual": ResidualStream,
        "allocator": AllocatorPeaks,
        "time": StepTime,
    },
    told_by="kind",
)
