"""How fast are the operations between matrix products, and which implementation is fastest?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.operations import BACKWARD, FORWARD, WHOLE, Widths
from pipeline.formulas.sizes import SIZES
from pipeline.subjects.naming import OPERATIONS, Measured, operation_of

SPLIT_AXIS = "op"
READS = ("ceilings",)
DTYPES = ("bf16", "fp32")
ELEMENT_BYTES = {"bf16": 2, "fp32": 4}
ADAMW = "adamw"
PHASES = (FORWARD, BACKWARD, WHOLE)
LIGER = "liger"
# eager: torch's operations; compile: the same through torch.compile; fused: torch's AdamW in one kernel for many
# tensors, which our steps use too.
IMPLS = ("ours", "eager", "compile", LIGER, "fused")
IMPLS_OF_ADAMW = ("eager", "compile", "fused")
# Peers from third-party packages (pipeline.peers): another version makes a cell stale.
PACKAGES = (LIGER,)
SUBJECTS = Measured("op", {"phase": WHOLE})


@dataclass(frozen=True)
class Cell:
    """One operation at the widths of a model; the implementations are its rows.

    rms_norm: with the sum before it; rotary: of queries and keys; swiglu: silu(gate) · up; linear_cross_entropy: head
    and loss; adamw: a step of the parameters of one block, which are of the dtype. repeat: the number of a cell that
    measures the same again.
    """

    gpus = 1  # on a machine that has any

    op: str = axis("rms_norm", allowed=OPERATIONS)
    dtype: str = axis("bf16", allowed=DTYPES)
    size: str = axis("2.7B", allowed=SIZES)
    batch_size: int = axis(4, minimum=1)
    context_length: int = axis(1024, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    repeat: int = axis(1, minimum=1)

    def takes(self, subject: str) -> bool:
        """Return whether the user's implementation of this name is for this cell's operation."""
        return operation_of(subject) == self.op

    @property
    def widths(self) -> Widths:
        """The sizes of the operation's inputs."""
        size = SIZES[self.size]
        return Widths(size, self.batch_size, self.context_length, size.vocabulary(self.vocab_size))

    @property
    def phases(self) -> tuple[str, ...]:
        """The phases to time; an optimizer's step has no parts."""
        return (WHOLE,) if self.op == ADAMW else PHASES

    @property
    def impls(self) -> tuple[str, ...]:
        """The implementations to compare, on any device."""
        return IMPLS_OF_ADAMW if self.op == ADAMW else tuple(name for name in IMPLS if name != "fused")

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: every row."""
        return [{"impl": impl, "phase": phase} for impl in self.impls for phase in self.phases]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the stop rule of each row, the limit above which a call is too slow to be sampled.

    compiled: whether torch.compile is measured, which takes seconds a cell. check_timeout_s and timeout_s end the check
    of an implementation of the user's own, and the measurement with it.
    """

    min_samples: int = axis(10, minimum=3)
    max_samples: int = axis(100, minimum=3)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(0.5, minimum=0)
    call_limit_s: float = axis(5.0, minimum=0)
    compiled: bool = axis(True)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)
    timeout_s: float = axis(600.0, minimum=1)
    threads: int = axis(0, minimum=0)
