"""What does sharding the optimizer's state save in memory, and cost in time?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.subjects.naming import Measured
from pipeline.ways.cell import TRAIN_STEP, RanksCell, RanksSettings

SPLIT_AXIS = "precision"
KEEPS_FILES = True

# adamw: the whole state on every rank; sharded: ours, each rank with its share; torch_zero: ZeroRedundancyOptimizer.
IMPLS = ("adamw", "sharded", "torch_zero")
MEASURES = ("time", "memory", "traffic", "timeline")
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
SUBJECTS = Measured("optimizer", WHOLE_STEP)
MOMENTS = ("initialised", "first_before_step", "first_after_step", "before_step", "after_step")
# In addition to the KINDS of tensors: bytes that the allocator gave out, bytes requested from it, the peaks of both.
ALLOCATOR_KINDS = ("allocated", "requested")
PEAKS = ("peak", "requested_peak")
COLLECTIVES = ("allreduce", "broadcast")


@dataclass(frozen=True)
class Cell(RanksCell):
    """One model size, precision, batch and number of ranks; the optimizers are its rows.

    repeat: the number of a cell that measures the same again, in its own process.
    """

    ways = tuple({"impl": impl} for impl in IMPLS)
    whole_step = WHOLE_STEP


@dataclass(frozen=True)
class Settings(RanksSettings):
    """Shared by all cells. Optimizers take turns in `rounds`; every second round runs in reverse order."""

    timeout_s: float = axis(900.0, minimum=1)
