"""What does averaging gradients over ranks cost a training step, and how much of it can the backward pass hide?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "precision"
READS = ("allreduce",)


@dataclass(frozen=True)
class Variant:
    """One way to average gradients; bucket size in MB of 2^20 bytes, None without buckets."""

    impl: str
    bucket_size_mb: int | None = None


BUCKET_SIZES_MB = (1, 10, 100, 1000)
IMPLS = ("naive", "flat", "overlap", "bucketed", "torch_tuned", "torch", "none")
# "torch" is DistributedDataParallel with its defaults; "torch_tuned" sends no buffers, like ours, and keeps gradients
# in its buckets. "none" does not communicate: the difference to it is the cost of communication. It comes last, so that
# its weights are compared with those of a variant that averages.
VARIANTS = (
    Variant("naive"),
    Variant("flat"),
    Variant("overlap"),
    *(Variant("bucketed", size) for size in BUCKET_SIZES_MB),
    Variant("torch_tuned", 25),
    *(Variant("torch", size) for size in (1, 25, 100)),
    Variant("none"),
)

PHASES = ("forward", "backward", "communication", "optimizer")
TRAIN_STEP = "train_step"
WHOLE_STEP = {"phase": TRAIN_STEP, "clock": "host"}
SUBJECTS = Measured("ddp", WHOLE_STEP, apart=("none",))
# One step of each of these is captured: together they show how much communication an early start hides.
CAPTURED = ("naive", "overlap")
CAPTURED_STEP, PROFILER = "captured_step", "torch.profiler"


@dataclass(frozen=True)
class Cell:
    """One model size, precision, batch and number of ranks; the DDP variants are its rows.

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

    def row_keys(self) -> list[dict[str, str | int | None]]:
        """Return the keys of the rows of a cell that could not be measured: each variant's whole step."""
        return [{**variant_key(variant), **WHOLE_STEP} for variant in VARIANTS]


def variant_key(variant: Variant) -> dict[str, str | int | None]:
    """Return the columns that name a variant."""
    return {"impl": variant.impl, "bucket_size_mb": variant.bucket_size_mb}


@dataclass(frozen=True)
class Settings:
    """Shared by all cells. Variants take turns in `rounds`; every second round runs in reverse order."""

    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(2, minimum=2)  # torch's DDP rebuilds its buckets after the first step
    steps: int = axis(10, minimum=5)
    rounds: int = axis(2, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)  # of an implementation of the user's own
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)
