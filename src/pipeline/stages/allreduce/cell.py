"""How long does an all-reduce take: by backend, number of ranks and size, alone and in a burst."""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError

SPLIT_AXIS = "backend"
ELEMENT_BYTES = 4
TIMINGS = ("set_up", "first_call", "burst", "single")
IMPLS = ("torch", "nccl")
PLACEMENTS = ("in_place", "out_of_place")


@dataclass(frozen=True)
class Cell:
    """One backend (gloo on the CPU, nccl on GPUs) and its number of ranks; every size is a row."""

    backend: str = axis("gloo", allowed=("gloo", "nccl"))
    world_size: int = axis(2, minimum=2)

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any: one a rank, and none for gloo."""
        return self.world_size if self.backend == "nccl" else 0

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names each kind of row: the rows of a cell that could not be measured."""
        timings = [{"timing": name, "impl": "torch", "placement": "in_place"} for name in ("burst", "single")]
        if self.backend == "gloo":
            return timings
        return [*timings, *({"timing": "burst", "impl": "nccl", "placement": place} for place in PLACEMENTS)]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: sizes as nccl-tests' -b, -e and -f give them, and how much to sample."""

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
        """Return the sizes, smallest first; raises UserError where they are not whole numbers of fp32 or none."""
        if self.min_bytes % ELEMENT_BYTES:
            raise UserError(f"allreduce: min_bytes is {self.min_bytes}, allowed are multiples of {ELEMENT_BYTES}")
        if self.max_bytes < self.min_bytes:
            raise UserError(
                f"allreduce: max_bytes is {self.max_bytes}, allowed is min_bytes ({self.min_bytes}) or more"
            )
        sizes = [self.min_bytes]
        while sizes[-1] * self.factor <= self.max_bytes:
            sizes.append(sizes[-1] * self.factor)
        return sizes
