"""What does sharding parameters, gradients and optimizer state save in memory, and cost in time?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.subjects.naming import Measured
from pipeline.ways.cell import TRAIN_STEP, CapturedSettings, RanksCell

SPLIT_AXIS = "precision"
KEEPS_FILES = True
READS = ("collectives",)

# none: no communication between ranks. ddp: one all-reduce per parameter during backward. ddp_sharded: the same, with
# the optimizer state sharded. fsdp: ours with one unit per block. fsdp_layers: ours with one unit per matrix.
# torch_fsdp: torch's fully_shard, by block.
IMPLS = ("none", "ddp", "ddp_sharded", "fsdp", "fsdp_layers", "torch_fsdp")
FULLY_SHARDED = ("fsdp", "fsdp_layers", "torch_fsdp")
MEASURES = ("time", "memory", "traffic", "capture")
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
SUBJECTS = Measured("fsdp", WHOLE_STEP, apart=("none",))
COLLECTIVES = ("allreduce", "broadcast", "allgather_base", "reduce_scatter_base")


@dataclass(frozen=True)
class Cell(RanksCell):
    """One model size, precision, batch and number of ranks; the ways to train are its rows.

    Under bf16 the fully sharded ways compute with bf16 parameters and send bf16; all run under autocast.
    repeat: the number of a cell that measures the same again, in its own process.
    """

    ways = tuple({"impl": impl} for impl in IMPLS)
    whole_step = WHOLE_STEP


@dataclass(frozen=True)
class Settings(CapturedSettings):
    """Shared by all cells. The ways take turns in `rounds`; every second round runs in reverse order."""

    warmup_steps: int = axis(3, minimum=2)  # the first step's order decides what the second prefetches
