"""What does each optimization of a bf16 training step buy, alone and together?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.errors import UserError
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "size"
# In the order in which names join them.
LEVERS = ("fused", "flash", "sdpa", "compile", "graph", "bf16_weights", "checkpointing")
EAGER = "eager"
# Of every step.
PRECISION = "bf16"


@dataclass(frozen=True)
class Cell:
    """One model under bf16 autocast with some levers: `eager` for none, else their names joined by +.

    fused: AdamW in one kernel for many tensors; flash, sdpa: attention by our Triton kernels or by PyTorch's; compile:
    torch.compile, block by block; graph: the step as one CUDA graph; bf16_weights: parameters, gradients and optimizer
    state in bf16; checkpointing: every block runs again in the backward pass.
    """

    size: str = axis("medium", allowed=SIZES)
    context_length: int = axis(1024, minimum=1)
    levers: str = axis(EAGER)

    def __post_init__(self) -> None:
        """Raise UserError, one line, for a lever that is unknown, out of order or given twice."""
        named = self.names
        if named != [name for name in LEVERS if name in named] or {"flash", "sdpa"} <= {*named}:
            raise UserError(
                f"levers must be {EAGER} or, joined by + in this order, {', '.join(LEVERS)}, with flash or sdpa and not"
                f" both, got '{self.levers}'"
            )

    @property
    def names(self) -> list[str]:
        """The levers by name."""
        return [] if self.levers == EAGER else self.levers.split("+")

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any."""
        return 1

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names its row: the cell alone does."""
        return [{}]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the batch, the stop rule, and how the result is checked.

    The loss of the first step, from the same weights, may differ from eager's by `first_loss_tolerance`, as a share of
    it. That of step `checked_steps` may differ by `loss_tolerance`, as a share of what eager's has fallen by. The
    learning rate is small, because at AdamW's default of 1e-3 large models jump so far in each of the first steps that
    rounding alone decides where they land.
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
    threads: int = axis(0, minimum=0)
