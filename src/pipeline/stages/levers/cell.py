"""What does each optimization of a training step buy, alone and together?"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "size"
READS = ("ceilings",)
# Cells with other combinations may have rows of the same steps.
CHOOSES_ROWS = ("combinations",)
# In the order in which they appear in combined names.
LEVERS = (
    *("fused", "muon", "flash", "sdpa", "blocks", "compile", "fp8", "fp8_rowwise", "graph"),
    *("bf16_moments", "bf16_weights", "checkpointing"),
)
# Pairs that cannot be combined in one step, and why.
EXCLUSIVE = {
    ("flash", "sdpa"): "both are attention",
    ("blocks", "compile"): "both stand for a block's operations",
    ("blocks", "checkpointing"): "blocks keep what they need by themselves",
    ("fp8", "fp8_rowwise"): "both are fp8",
    ("fused", "bf16_moments"): "both are AdamW",
    ("muon", "bf16_moments"): "both are the optimizer",
    ("bf16_moments", "bf16_weights"): "with weights in bf16 moments are in bf16 too",
}
# Without torch.compile, every cast to fp8 is a separate kernel, which costs more than the products gain.
OF_COMPILED = ("fp8", "fp8_rowwise")
# Their products use fewer bits than fp32 whatever the step's precision, so they are not measured in fp32.
OF_FEWER_BITS = ("fp8", "fp8_rowwise", "bf16_weights")
# A few steps say little about how these train in the long run.
UNPROVEN = ("muon", "fp8", "fp8_rowwise", "bf16_moments", "bf16_weights")
# Peers from separate packages (pipeline.peers): another version makes a cell stale.
PACKAGES = ("torchao",)
# The step without levers, first and once more at the end.
EAGER, EAGER_AGAIN = "eager", "eager_again"
# Computes the same as the eager step, in less memory.
CHECKPOINTED = "checkpointing"
# Each lever alone, both kinds of attention on top of `fused`, and a ladder that adds one lever at a time.
LADDER = ("fused", "sdpa", "compile", "graph", "bf16_weights", "checkpointing")
ALL = "all"
OF_ALL = (
    *(name for name in LEVERS if name not in OF_COMPILED),
    "fused+flash",
    *("+".join(LADDER[:count]) for count in range(2, len(LADDER) + 1)),
    *(f"fused+sdpa+compile+{name}" for name in OF_COMPILED),
    "fused+flash+blocks",
)


def names(levers: str) -> list[str]:
    """Return the names of the levers in a combination; [] for the eager step."""
    return [] if levers in (EAGER, EAGER_AGAIN) else levers.split("+")


@dataclass(frozen=True)
class Cell:
    """One model and precision; combinations of levers are its rows, between two of the eager step.

    precision: fp32, or bf16 under autocast. combinations: `all` that the precision has, or some, joined by colons, of
    levers joined by +. repeat: the number of a cell that measures the same again.

    fused: AdamW in one kernel for many tensors; muon: torch.optim.Muon for the blocks' matrices, AdamW for the rest;
    flash, sdpa: attention by our Triton kernels or by PyTorch's; blocks: each block in few passes over memory, head and
    loss in one, as in step8b; compile: torch.compile, block by block; fp8, fp8_rowwise: the blocks' products in fp8 by
    torchao, with a scale for each tensor or each row, in what torch.compile compiles; graph: the step as one CUDA
    graph; bf16_moments: AdamW's moments alone in bf16; bf16_weights: parameters, gradients and optimizer state in bf16;
    checkpointing: every block runs again in the backward pass.
    """

    gpus = 1  # on a machine that has any

    size: str = axis("medium", allowed=SIZES)
    context_length: int = axis(1024, minimum=1)
    precision: str = axis("bf16", allowed=("fp32", "bf16"))
    combinations: str = axis(ALL)
    repeat: int = axis(1, minimum=1)

    def __post_init__(self) -> None:
        """Raise UserError, one line, for levers that are unknown, out of order, given twice or cannot be combined."""
        for levers in self._asked:
            why = _why_not_together(levers, self.precision)
            if why or not _is_in_order(levers) or self._asked.count(levers) > 1:
                raise UserError(
                    f"combinations must be {ALL} or, joined by : and each once, levers joined by + in this order: "
                    f"{', '.join(LEVERS)}{f'; {why}' if why else ''}, got '{levers}'"
                )

    @property
    def _asked(self) -> Sequence[str]:
        if self.combinations != ALL:
            return self.combinations.split(":")
        return [levers for levers in OF_ALL if not _of_fewer_bits(levers, self.precision)]

    @property
    def turns(self) -> list[str]:
        """The combinations to measure, in order: the eager step comes first and last."""
        return [EAGER, *self._asked, EAGER_AGAIN]

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: each turn's."""
        return [{"levers": levers} for levers in self.turns]


def _of_fewer_bits(levers: str, precision: str) -> list[str]:
    """Return the levers of a combination that are not measured in this precision."""
    return [name for name in names(levers) if precision == "fp32" and name in OF_FEWER_BITS]


def _is_in_order(levers: str) -> bool:
    """Tell whether a combination consists of known levers, each once, in their order."""
    found = levers.split("+")
    return found == [name for name in LEVERS if name in found]


def _why_not_together(levers: str, precision: str) -> str | None:
    """Say why known levers cannot be combined in this precision; None if they can."""
    found = levers.split("+")
    for pair, why in EXCLUSIVE.items():
        if {*pair} <= {*found}:
            return f"{' and '.join(pair)} exclude each other ({why})"
    if narrow := _of_fewer_bits(levers, precision):
        return f"{narrow[0]} multiplies in fewer bits than {precision}: it needs precision=bf16"
    lacking = [name for name in OF_COMPILED if name in found and "compile" not in found]
    return f"{lacking[0]} needs compile, without which its casts cost more than it gains" if lacking else None


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the batch, the stop rule, and how the result is checked.

    The loss of the first step, from the same weights, may differ from eager's by `first_loss_tolerance`, as a share of
    it. That of step `checked_steps` may differ by `loss_tolerance`, as a share of what eager's has fallen by. The
    learning rate is small, because at AdamW's default of 1e-3 large models jump so far in each of the first steps that
    rounding alone decides where they land. timeout_s: for one turn.
    """

    batch_size: int = axis(4, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    steps: int = axis(10, minimum=10)
    max_steps: int = axis(100, minimum=10)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(2.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    learning_rate: float = axis(1e-4, minimum=0)
    checked_steps: int = axis(20, minimum=8)
    first_loss_tolerance: float = axis(0.002, minimum=0)
    loss_tolerance: float = axis(0.1, minimum=0)
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)
