"""What does averaging gradients over ranks cost a training step, and how much of it can backward hide."""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "precision"
READS = ("allreduce",)


@dataclass(frozen=True)
class Variant:
    """One way to average gradients, with its bucket size in MB (2^20 bytes) where it has buckets."""

    impl: str
    bucket_size_mb: int | None = None


IMPLS = ("naive", "flat", "overlap", "bucketed", "torch_tuned", "torch", "none")
# "torch" is DistributedDataParallel as it comes; tuned, it sends no buffers, as ours do not, and gradients lie in its
# buckets. "none" communicates nothing: what a variant takes beyond it is what communication
# costs. It is last, so that its weights are compared with those of a variant that averages.
VARIANTS = (
    Variant("naive"),
    Variant("flat"),
    Variant("overlap"),
    *(Variant("bucketed", size) for size in (1, 10, 100, 1000)),
    Variant("torch_tuned", 25),
    *(Variant("torch", size) for size in (1, 25, 100)),
    Variant("none"),
)

PHASES = ("forward", "backward", "communication", "optimizer")
TRAIN_STEP = "train_step"
WHOLE_STEP = {"phase": TRAIN_STEP, "clock": "host"}
# Of these variants one step is captured: beside each other they show what starting early hides.
CAPTURED = ("naive", "overlap")
CAPTURED_STEP, PROFILER = "captured_step", "torch.profiler"


@dataclass(frozen=True)
class Cell:
    """One model and precision, data-parallel over so many ranks; its rows are the variants.

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

    def row_keys(self) -> list[dict[str, str | int | None]]:
        """Return what names the whole step of each variant: the rows of a cell that could not be measured."""
        return [{**variant_key(variant), **WHOLE_STEP} for variant in VARIANTS]


def variant_key(variant: Variant) -> dict[str, str | int | None]:
    """Return the columns that name a variant."""
    return {"impl": variant.impl, "bucket_size_mb": variant.bucket_size_mb}


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares. Variants take turns in `rounds`, every second one in reverse order."""

    batch_size_per_rank: int = axis(2, minimum=1)
    context_length: int = axis(512, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(2, minimum=2)  # torch's DDP makes its buckets anew after the first step
    steps: int = axis(10, minimum=5)
    rounds: int = axis(2, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)
