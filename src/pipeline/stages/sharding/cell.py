"""What does sharing the optimizer's state out over ranks save in memory, and cost in time and bytes."""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "precision"

# AdamW on every rank in full; ours, each rank with the state of its share; torch's ZeroRedundancyOptimizer.
IMPLS = ("adamw", "sharded", "torch_zero")
MEASURES = ("time", "memory", "traffic")
PHASES = ("forward", "backward", "communication", "optimizer")
TRAIN_STEP = "train_step"
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
MOMENTS = ("initialised", "first_before_step", "first_after_step", "before_step", "after_step")
# What is counted of a rank's memory, what the allocator gave out and was asked for, and the peaks of both.
KINDS = ("parameters", "gradients", "optimizer_state")
ALLOCATOR_KINDS = ("allocated", "requested")
PEAKS = ("peak", "requested_peak")
COLLECTIVES = ("allreduce", "broadcast")


@dataclass(frozen=True)
class Cell:
    """One model and precision, data-parallel over so many ranks; its rows are the optimizers.

    repeat: numbers cells that measure the same, each in a process of its own.
    """

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("xl", allowed=tuple(SIZES))
    world_size: int = axis(2, minimum=2)
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any: one a rank."""
        return self.world_size

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names the whole step with each optimizer: the rows of a cell that could not be measured."""
        return [{"impl": impl, **WHOLE_STEP} for impl in IMPLS]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares. Optimizers take turns in `rounds`, every second one in reverse order."""

    batch_size_per_rank: int = axis(2, minimum=1)
    context_length: int = axis(512, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(3, minimum=1)
    steps: int = axis(10, minimum=5)
    rounds: int = axis(2, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(900.0, minimum=1)
    threads: int = axis(0, minimum=0)
