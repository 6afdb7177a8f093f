"""How fast does each model size train?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES
from pipeline.model.precision import PRECISIONS
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "precision"
READS = ("ceilings",)
# Of a compiled model: its first step, which compiles.
FIRST_STEP = "compile"
PHASES = ("forward", "backward", "optimizer", "train_step")

SUBJECTS = Measured("model", {"phase": "train_step", "clock": "host"}, pipelines="TransformerLM")


@dataclass(frozen=True)
class Cell:
    """One model, context, batch and precision, with so many warm-up steps.

    repeat: the number of a cell that measures the same again, in its own process.
    """

    precision: str = axis("fp32", allowed=PRECISIONS)
    size: str = axis("small", allowed=SIZES)
    context_length: int = axis(256, minimum=1)
    batch_size: int = axis(4, minimum=1)
    warmup_steps: int = axis(5, minimum=0)
    mode: str = axis("eager", allowed=("eager", "compiled"))
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any."""
        return 1

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names each row by the host clock: the rows of a cell that could not be measured."""
        first = (FIRST_STEP,) if self.mode == "compiled" else ()
        return [{"phase": name, "clock": "host"} for name in (*first, *PHASES)]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the assignment's steps, and the stop rule."""

    vocab_size: int = axis(10_000, minimum=2)
    steps: int = axis(10, minimum=5)
    max_steps: int = axis(50, minimum=5)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(4.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)  # of a model of the user's own
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)
