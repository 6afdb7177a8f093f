"""What memory, communication and batch size do models too large for this machine need?"""

from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.fields import axis
from pipeline.stages.accounting.models import NAMES

SPLIT_AXIS = "question"
READS = ("ceilings", "collectives")
QUESTIONS = ("memory", "fsdp", "mesh", "buckets", "ring", "parallel", "activations", "attention")


@dataclass(frozen=True)
class Cell:
    """One question about one model; the batch size, in sequences, matters only for questions about memory."""

    shares_host: ClassVar[bool] = True  # the cell measures no times and uses one core

    question: str = axis("memory", allowed=QUESTIONS)
    size: str = axis("XXL", allowed=NAMES)
    batch_size: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """Return 0: nothing is measured."""
        return 0

    def row_keys(self) -> list[dict[str, Any]]:
        """Return one empty key: a cell without answers has a single row."""
        return [{}]


@dataclass(frozen=True)
class Settings:
    """The hardware in the questions: GPU memory, the assignment's mesh of TPU v5p, and an all-reduce.

    The all-reduce is an example in round figures; the stages `collectives` and `ddp` measure a real one.
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
    egress_gbytes_per_s: float = axis(90.0, minimum=0.001)
    batch_tokens: int = axis(1_000_000, minimum=1)
