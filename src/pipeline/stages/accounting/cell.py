"""What memory, communication and batch sizes follow from arithmetic alone, for models too large to be measured here."""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.fields import axis
from pipeline.stages.accounting.models import NAMES

SPLIT_AXIS = "question"
QUESTIONS = ("memory", "fsdp", "mesh", "buckets", "activations", "attention")


@dataclass(frozen=True)
class Cell:
    """One question about one model; the batch (in sequences) counts where memory is asked for."""

    question: str = axis("memory", allowed=QUESTIONS)
    size: str = axis("XXL", allowed=NAMES)
    batch_size: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """It takes no GPU: nothing is measured."""
        return 0

    def shares_host(self, _on_gpu: bool) -> bool:
        """It takes no times, and one core."""
        return True

    def row_keys(self) -> list[dict[str, Any]]:
        """Return what names a row of a cell without answers: nothing beyond the cell."""
        return [{}]


@dataclass(frozen=True)
class Settings:
    """The machines of the questions: memory, a mesh of TPU v5p as the assignment gives it, and an all-reduce.

    The all-reduce is an example in round figures; the stages `allreduce` and `ddp` measure one.
    """

    vocab_size: int = axis(10_000, minimum=0)
    gpu_memory_gb: float = axis(80.0, minimum=0.001)
    device_memory_gb: float = axis(95.0, minimum=0.001)
    fsdp_size: int = axis(16, minimum=1)
    tensor_size: int = axis(4, minimum=1)
    fsdp_axes: int = axis(2, minimum=1)
    tensor_axes: int = axis(1, minimum=1)
    link_gbytes_per_s: float = axis(180.0, minimum=0.001)
    peak_tflops_per_s: float = axis(460.0, minimum=0.001)
    allreduce_gbytes_per_s: float = axis(100.0, minimum=0.001)
    call_overhead_us: float = axis(20.0, minimum=0.001)
