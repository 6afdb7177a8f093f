"""How close do tensor, fully sharded and context parallelism come to their formulas?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES
from pipeline.ways.cell import TRAIN_STEP

SPLIT_AXIS = "what"

# none: every rank does the whole work of one process. tensor: each rank has a share of every matrix's width. sequence:
# as tensor, and between the matrices each rank has a share of the tokens. fsdp: each rank has a share of the sequences,
# and gathers weights. fsdp_tensor: tensor within groups of two ranks, fsdp over the groups. context: each rank has a
# share of every sequence's tokens, passes keys and values on, and gathers weights.
IMPLS = {
    "block": ("none", "tensor", "sequence", "fsdp", "fsdp_tensor", "context"),
    "step": ("none", "tensor", "sequence", "fsdp", "fsdp_tensor"),
}
EVERY_IMPL = IMPLS["block"]
TENSOR_RANKS = 2  # of fsdp_tensor
MEASURES = ("time", "traffic", "budget", "rate")
WHOLE_STEP = {"measures": "time", "phase": TRAIN_STEP, "clock": "host"}
COLLECTIVES = ("allreduce", "allgather_base", "reduce_scatter_base", "alltoall_base", "broadcast")
# Predictions start from the rates of a matrix product, and of all-reduces as large as the activations and the weights.
RATES = ("matmul", "allreduce_activations", "allreduce_weights")


@dataclass(frozen=True)
class Cell:
    """One model, batch and precision, over all ranks; the ways to divide the work are the rows.

    what: block, forward and backward of one transformer block; step, a whole training step. repeat: the number of a
    cell that measures the same again.
    """

    what: str = axis("block", allowed=tuple(IMPLS))
    precision: str = axis("bf16", allowed=("fp32", "bf16"))
    size: str = axis("2.7B", allowed=SIZES)
    batch_size: int = axis(8, minimum=1)
    context_length: int = axis(2048, minimum=2)
    world_size: int = axis(2, minimum=2)
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """The GPUs that the cell uses if there are any: one per rank."""
        return self.world_size

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: each way's whole step."""
        return [{"impl": impl, **WHOLE_STEP} for impl in IMPLS[self.what]]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells. The ways take turns in `rounds`; every second round runs in reverse order.

    *_tolerance: how far a gradient may be from one process', by their norms, of the parameter furthest off; the loss a
    tenth of it. What is not summed over ranks, or twice, is off by half or more. matmul_side: of the square matrices
    whose product is the rate of computing.
    """

    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(3, minimum=1)
    steps: int = axis(10, minimum=2)
    rounds: int = axis(2, minimum=1)
    fp32_tolerance: float = axis(1e-4, minimum=0)
    bf16_tolerance: float = axis(0.2, minimum=0)
    matmul_side: int = axis(8192, minimum=16)
    unstable_rel_error: float = axis(0.05, minimum=0)
    timeout_s: float = axis(600.0, minimum=1)
    threads: int = axis(0, minimum=0)

    def tolerance(self, precision: str) -> float:
        """Return the tolerance at a precision."""
        return {"fp32": self.fp32_tolerance, "bf16": self.bf16_tolerance}[precision]
