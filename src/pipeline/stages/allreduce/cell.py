"""How long does an all-reduce take, back to back and as a single call?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError

SPLIT_AXIS = "backend"
READS = ("ceilings",)
ELEMENT_BYTES = 4
TIMINGS = ("set_up", "first_call", "burst", "single")
IMPLS = ("torch", "nccl")
PLACEMENTS = ("in_place", "out_of_place")


@dataclass(frozen=True)
class Cell:
    """One backend (gloo on the CPU, nccl on GPUs), number of ranks and nodes that share them; sizes are its rows."""

    backend: str = axis("gloo", allowed=("gloo", "nccl"))
    world_size: int = axis(2, minimum=2)
    nodes: int = axis(1, minimum=1)

    def __post_init__(self) -> None:
        """Raise UserError, one line, where the nodes cannot have as many ranks each."""
        if self.world_size % self.nodes:
            raise UserError(f"world_size must be a multiple of nodes ({self.nodes}), got {self.world_size}")

    @property
    def ranks_per_node(self) -> int:
        """The ranks on each node."""
        return self.world_size // self.nodes

    @property
    def gpus(self) -> int:
        """The GPUs that the cell uses on each node if there are any: one per rank, none for gloo."""
        return self.ranks_per_node if self.backend == "nccl" else 0

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: one for each kind."""
        timings = [{"timing": name, "impl": "torch", "placement": "in_place"} for name in ("burst", "single")]
        if self.backend == "gloo":
            return timings
        return [*timings, *({"timing": "burst", "impl": "nccl", "placement": name} for name in PLACEMENTS)]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: sizes, as nccl-tests' -b, -e and -f, and how much to sample."""

    min_bytes: int = axis(1_000_000, minimum=ELEMENT_BYTES)
    max_bytes: int = axis(1_000_000_000, minimum=ELEMENT_BYTES)
    factor: int = axis(10, minimum=2)
    warmup_calls: int = axis(5, minimum=1)
    burst_calls: int = axis(20, minimum=1)
    samples: int = axis(10, minimum=2)
    max_samples: int = axis(50, minimum=2)
    budget_s: float = axis(2.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(300.0, minimum=1)
    threads: int = axis(0, minimum=0)

    def sizes_bytes(self) -> list[int]:
        """Return the sizes, smallest first; raises UserError if they are not whole fp32 numbers or there are none."""
        if self.min_bytes % ELEMENT_BYTES:
            raise UserError(f"allreduce: min_bytes must be a multiple of {ELEMENT_BYTES}, got {self.min_bytes}")
        if self.max_bytes < self.min_bytes:
            raise UserError(f"allreduce: max_bytes must be at least min_bytes ({self.min_bytes}), got {self.max_bytes}")
        sizes = [self.min_bytes]
        while sizes[-1] * self.factor <= self.max_bytes:
            sizes.append(sizes[-1] * self.factor)
        return sizes
