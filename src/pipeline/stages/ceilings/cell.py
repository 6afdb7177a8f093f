"""How fast is this machine at best?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis

SPLIT_AXIS = "what"
DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp8")
# The ceilings that each cell except matmul measures.
KINDS = {
    "memory": ("copy", "reduction", "l2_copy"),
    "host_link": ("to_device", "to_host"),
    "peer_link": ("to_peer",),
    "launches": ("launch", "operator"),
}


@dataclass(frozen=True)
class Cell:
    """One part of the machine; its ceilings are the rows."""

    what: str = axis("matmul", allowed=("matmul", *KINDS))

    @property
    def gpus(self) -> int:
        """The number of GPUs the cell uses if the machine has any."""
        return 2 if self.what == "peer_link" else 1

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured."""
        if self.what == "matmul":
            return [{"dtype": dtype} for dtype in DTYPES]
        return [{"kind": kind} for kind in KINDS[self.what]]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the largest problems, and the stop rule of each ceiling."""

    max_side: int = axis(16384, minimum=16)
    memory_bytes: int = axis(1_073_741_824, minimum=4096)
    link_bytes: int = axis(268_435_456, minimum=4096)
    samples: int = axis(10, minimum=2)
    max_samples: int = axis(50, minimum=2)
    rel_error: float = axis(0.002, minimum=0)
    budget_s: float = axis(0.3, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    threads: int = axis(0, minimum=0)

    def sides(self) -> list[int]:
        """Return the sides of the square matrices, smallest first: max_side, its half, and so on, five at most."""
        return [side for side in (self.max_side >> halvings for halvings in range(4, -1, -1)) if side >= 16]
