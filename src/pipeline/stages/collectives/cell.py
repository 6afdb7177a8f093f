"""How fast are collectives, back to back and as single calls?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError

SPLIT_AXIS = "backend"
READS = ("ceilings",)
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
# Collectives whose result overwrites the input, and those whose buffer is divided into a share per rank.
IN_PLACE = ("all_reduce", "broadcast")
IN_SHARES = ("all_gather", "reduce_scatter", "all_to_all")
ITEM_BYTES = {"fp32": 4, "bf16": 2}
TIMINGS = ("set_up", "first_call", "burst", "single", "graph")
IMPLS = ("torch", "nccl")
PLACEMENTS = ("in_place", "out_of_place")
# gloo's largest size, whatever is asked for: a call of this size takes a second.
GLOO_MOST_BYTES = 1_000_000_000


@dataclass(frozen=True)
class Cell:
    """One collective by one backend (gloo on the CPU, nccl on GPUs), ranks, nodes that share them; sizes are its rows.

    send_recv is a ring: each rank sends to the next and receives from the one before, both at once.
    """

    backend: str = axis("gloo", allowed=("gloo", "nccl"))
    world_size: int = axis(2, minimum=2)
    nodes: int = axis(1, minimum=1)
    collective: str = axis("all_reduce", allowed=COLLECTIVES)
    dtype: str = axis("fp32", allowed=tuple(ITEM_BYTES))

    def __post_init__(self) -> None:
        """Raise UserError, one line, if the ranks do not divide evenly among the nodes."""
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

    @property
    def placement(self) -> str:
        """Whether torch.distributed writes the result in place or out of place."""
        return PLACEMENTS[0] if self.collective in IN_PLACE else PLACEMENTS[1]

    @property
    def is_called_directly(self) -> bool:
        """Whether NCCL is also called without torch."""
        return (self.backend, self.collective, self.dtype) == ("nccl", "all_reduce", "fp32")

    def buffer_bytes(self, size_bytes: int) -> int:
        """Round a size in bytes up to whole numbers and, for collectives in IN_SHARES, to equal shares."""
        unit = ITEM_BYTES[self.dtype] * (self.world_size if self.collective in IN_SHARES else 1)
        return -(-size_bytes // unit) * unit

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: one for each kind."""
        timings = [{"timing": name, "impl": "torch", "placement": self.placement} for name in ("burst", "single")]
        direct = [{"timing": "burst", "impl": "nccl", "placement": name} for name in PLACEMENTS]
        return [*timings, *(direct if self.is_called_directly else [])]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: sizes, as nccl-tests' -b, -e and -f, and how much to sample."""

    min_bytes: int = axis(8, minimum=1)
    max_bytes: int = axis(4_000_000_000, minimum=1)
    factor: int = axis(10, minimum=2)
    warmup_calls: int = axis(5, minimum=1)
    burst_calls: int = axis(20, minimum=1)
    samples: int = axis(10, minimum=2)
    max_samples: int = axis(50, minimum=2)
    budget_s: float = axis(0.5, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(300.0, minimum=1)
    threads: int = axis(0, minimum=0)

    def sizes_bytes(self, backend: str = "nccl") -> list[int]:
        """Return a backend's sizes, smallest first: both ends, and powers of the factor from 4 × min_bytes on.

        Raises UserError if there are none.
        """
        if self.max_bytes < self.min_bytes:
            raise UserError(
                f"collectives: max_bytes must be at least min_bytes ({self.min_bytes}), got {self.max_bytes}"
            )
        powers, power = [], self.factor
        while power < self.max_bytes:
            powers += [power] if power >= 4 * self.min_bytes else []
            power *= self.factor
        sizes = sorted({self.min_bytes, *powers, self.max_bytes})
        most = GLOO_MOST_BYTES if backend == "gloo" else self.max_bytes
        return [size for size in sizes if size <= max(most, self.min_bytes)]
