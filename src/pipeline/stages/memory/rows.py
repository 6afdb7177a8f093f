"""Rows of the memory stage: peaks, timeline and largest allocations of a recording, and the time of a step."""

from dataclasses import dataclass

from pipeline.cells.rows import Row, RowTypes, column
from pipeline.cells.timed_rows import TimedRow
from pipeline.formulas.peak_memory import CATEGORIES

CATEGORY = "what the memory holds: by its tensor, else by its lifetime and the phase that allocated it"
EVENT = "number of allocations and releases before it"


@dataclass(frozen=True, kw_only=True)
class RecordingRow(Row):
    """Columns of all rows of one recording of two steps."""

    kind: str = column(
        "what the row is about",
        allowed=("peak", "timeline", "largest", "saved", "residual", "block", "block_saved", "allocator", "time"),
    )
    device_type: str = column("device that the model was on", allowed=("cpu", "cuda"))


@dataclass(frozen=True, kw_only=True)
class PhasePeak(RecordingRow):
    """The memory peak of one phase of a step, and its composition. A cell that failed has only this row."""

    KEYS = ("step", "phase")

    step: int = column("step, from 1; 0 builds the model", minimum=0)
    phase: str = column("part of the step", allowed=("build", "forward", "backward", "optimizer"))
    begin_event: int = column(f"start of the phase: {EVENT}", minimum=0)
    end_event: int = column(f"end of the phase: {EVENT}", minimum=0)
    peak_event: int = column(f"peak of the phase: {EVENT}", minimum=0)
    peak_bytes: int = column("most memory active at once", minimum=0)
    parameters_bytes: int = column("of the peak: parameters", minimum=0)
    gradients_bytes: int = column("of the peak: gradients of parameters", minimum=0)
    optimizer_state_bytes: int = column("of the peak: AdamW's moments", minimum=0)
    activations_bytes: int = column("of the peak: tensors kept for the backward pass, or recomputed in it", minimum=0)
    temporaries_bytes: int = column("of the peak: memory released before recording ends", minimum=0)
    other_bytes: int = column("of the peak: the batch, rotary tables, libraries' workspaces", minimum=0)


@dataclass(frozen=True, kw_only=True)
class CategoryTimeline(RecordingRow):
    """The active memory of one category over the recording, at chosen events."""

    KEYS = ("category",)

    category: str = column(CATEGORY, allowed=CATEGORIES)
    events: list[int] = column(f"each moment: {EVENT}", minimum=0)
    active_bytes: list[int] = column("active memory of the category at each moment", minimum=0)


@dataclass(frozen=True, kw_only=True)
class LargestAllocations(RecordingRow):
    """Allocations of one size by one line of code, made in the last step or alive after it; largest size first."""

    KEYS = ("rank",)

    rank: int = column("rank by size; 1 is the largest", minimum=1)
    size_bytes: int = column("bytes of one allocation", minimum=0)
    count: int = column("number of such allocations", minimum=1)
    category: str = column(CATEGORY, allowed=CATEGORIES)
    location: str = column("line of the model that allocated them, and its caller")
    code: str = column("text of that line; empty outside the model")


@dataclass(frozen=True, kw_only=True)
class SavedActivations(RecordingRow):
    """Activations kept at the end of the last forward pass."""

    activations_bytes: int = column("bytes of activations active then", minimum=0)


@dataclass(frozen=True, kw_only=True)
class ResidualStream(RecordingRow):
    """The sums that the blocks make in the last forward pass: the residual stream."""

    size_bytes: int | None = column("bytes of the largest sum; empty if none is known", minimum=0)
    smallest_bytes: int | None = column("bytes of the smallest sum; empty if none is known", minimum=0)
    count: int = column("number of sums: two per block", minimum=0)


@dataclass(frozen=True, kw_only=True)
class Block(RecordingRow):
    """Forward and backward of one block alone, without checkpoints."""

    saved_bytes: int = column("bytes that the block saves for its backward pass", minimum=0)
    gradients_bytes: int = column("gradients of the block's parameters", minimum=0)
    input_gradient_bytes: int = column("gradient of the block's input", minimum=0)


@dataclass(frozen=True, kw_only=True)
class BlockSaved(RecordingRow):
    """One tensor that a block saves for its backward pass, except its parameters; largest first."""

    KEYS = ("rank",)

    rank: int = column("rank by size; 1 is the largest", minimum=1)
    size_bytes: int = column("bytes of its storage", minimum=0)
    module: str = column("part of the block that saves it first; empty for the block itself")
    operation: str = column("autograd's name of the operation that saves it first, and of the operand")
    dtype: str = column("type of its elements")
    shape: list[int] = column("its shape", minimum=0)


@dataclass(frozen=True, kw_only=True)
class AllocatorPeaks(RecordingRow):
    """The peaks counted by CUDA's caching allocator."""

    requested_peak_bytes: int = column("peak of the bytes requested", minimum=0)
    allocated_peak_bytes: int = column("peak of the bytes allocated in whole blocks", minimum=0)
    reserved_peak_bytes: int = column("peak of the bytes reserved from the device", minimum=0)
    device_bytes: int = column("total memory of the device", positive=True)


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
        "block": Block,
        "block_saved": BlockSaved,
        "allocator": AllocatorPeaks,
        "time": StepTime,
    },
    kind_column="kind",
)
