"""What does sharding the optimizer's state over ranks save in memory, and cost in time and bytes?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "precision"

# adamw: the whole state on every rank; sharded: ours, each rank with its share; torch_zero: ZeroRedundancyOptimizer.
IMPLS = ("adamw", "sharded", "torch_zero")
MEASURES = ("time", "memory", "traffic")
PHASES = ("forward", "backward", "communication", "optimizer")
TRAIN_STEP = "train_step"
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
SUBJECTS = Measured("optimizer", WHOLE_STEP)
MOMENTS = ("initialised", "first_before_step", "first_after_step", "before_step", "after_step")
# Beside the KINDS of tensors: bytes that the allocator gave out and that were requested from it; the peaks of both.
ALLOCATOR_KINDS = ("allocated", "requested")
PEAKS = ("peak", "requested_peak")
COLLECTIVES = ("allreduce", "broadcast")


@dataclass(frozen=True)
class Cell:
    """One model size, precision, batch and number of ranks; the optimizers are its rows.

    repeat: the number of a cell that measures the same again, in its own process.
    """

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("xl", allowed=SIZES)
    batch_size_per_rank: int = axis(2, minimum=1)
    context_length: int = axis(512, minimum=1)
    world_size: int = axis(2, minimum=2)
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """The GPUs that the cell uses if there are any: one per rank."""
        return self.world_size

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: the whole step with each optimizer."""
        return [{"impl": impl, **WHOLE_STEP} for impl in IMPLS]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells. Optimizers take turns in `rounds`; every second round runs in reverse order."""

    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(3, minimum=1)
    steps: int = axis(10, minimum=5)
    rounds: int = axis(2, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)  # of an implementation of the user's own
    timeout_s: float = axis(900.0, minimum=1)
    threads: int = axis(0, minimum=0)
