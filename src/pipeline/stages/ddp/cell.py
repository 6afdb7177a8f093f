"""How much time does averaging gradients add to a step, and how much of it does the backward pass hide?"""

from dataclasses import asdict, dataclass

from pipeline.cells.fields import axis
from pipeline.subjects.naming import Measured
from pipeline.ways.cell import TRAIN_STEP, CapturedSettings, RanksCell

SPLIT_AXIS = "precision"
KEEPS_FILES = True
READS = ("collectives",)


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
    *(Variant("torch_tuned", size) for size in (25, 100, 1000)),
    *(Variant("torch", size) for size in (1, 25, 100)),
    Variant("none"),
)

WHOLE_STEP = {"phase": TRAIN_STEP, "clock": "host"}
SUBJECTS = Measured("ddp", WHOLE_STEP, apart=("none",))
# One step of each of these is captured: together they show how much communication an early start hides.
CAPTURED = ("naive", "overlap")
CAPTURED_STEP, PROFILER = "captured_step", "torch.profiler"


@dataclass(frozen=True)
class Cell(RanksCell):
    """One model size, precision, batch and number of ranks; the DDP variants are its rows.

    repeat: the number of a cell that measures the same again, in its own process.
    """

    ways = tuple(map(asdict, VARIANTS))
    whole_step = WHOLE_STEP


@dataclass(frozen=True)
class Settings(CapturedSettings):
    """Shared by all cells. Variants take turns in `rounds`; every second round runs in reverse order."""

    warmup_steps: int = axis(2, minimum=2)  # torch's DDP rebuilds its buckets after the first step
