"""Are this machine's GPUs and links sound?"""

from dataclasses import dataclass
from typing import Any

from pipeline.cells.fields import axis
from pipeline.instruments.machine.gpus import visible_gpus

SPLIT_AXIS = "gpu_count"
KINDS = ("gpu", "rate", "link")
WORKS = ("matmul", "copy")
LOADS = ("alone", "together")


@dataclass(frozen=True)
class Cell:
    """All GPUs of the machine that the run may use, or so many of them: each by itself, pair by pair, all at once."""

    gpu_count: str = axis("all", allowed=("all", *map(str, range(1, 17))))

    @property
    def takes_fewer_gpus(self) -> bool:
        """Whether to check only the GPUs that the run was granted, say two of eight."""
        return self.gpu_count == "all"

    @property
    def gpus(self) -> int:
        """The number of GPUs to ask for: all that this process sees, unless the axis gives a number."""
        return len(visible_gpus()) if self.gpu_count == "all" else int(self.gpu_count)

    def row_keys(self) -> list[dict[str, Any]]:
        """Return the key of the row of a cell that could not be measured."""
        return [{"kind": "gpu"}]


@dataclass(frozen=True)
class Settings:
    """How long the GPUs work alone, together and over each link, in seconds, and on how much."""

    alone_s: float = axis(1.0, minimum=0)
    together_s: float = axis(30.0, minimum=0)
    link_s: float = axis(0.2, minimum=0)
    side: int = axis(8192, minimum=16)
    memory_bytes: int = axis(1_073_741_824, minimum=4096)
    link_bytes: int = axis(268_435_456, minimum=4096)
    unstable_rel_error: float = axis(0.05, minimum=0)
    threads: int = axis(0, minimum=0)
