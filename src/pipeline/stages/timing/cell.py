"""How fast does each model size train?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES
from pipeline.model.precision import PRECISIONS
from pipeline.subjects.naming import Measured

SPLIT_AXIS = "precision"
READS = ("ceilings",)
# A model as it is written, then the same one compiled.
EAGER, COMPILED = "eager", "compiled"
# The first step of a compiled model, which compiles it.
FIRST_STEP = "compile"
PHASES = ("forward", "backward", "optimizer", "train_step")
# Cells with fewer warm-up steps study the warm-up, with eager steps only.
USUAL_WARMUP = 5

SUBJECTS = Measured("model", {"phase": "train_step", "clock": "host"}, pipelines="TransformerLM", apart_by=("mode",))


@dataclass(frozen=True)
class Cell:
    """One model, context, batch and precision, with so many warm-up steps: eager, then compiled.

    repeat: the number of a cell that measures the same again, in its own process.
    """

    gpus = 1  # on a machine that has any

    precision: str = axis("fp32", allowed=PRECISIONS)
    size: str = axis("small", allowed=SIZES)
    context_length: int = axis(256, minimum=1)
    batch_size: int = axis(4, minimum=1)
    warmup_steps: int = axis(USUAL_WARMUP, minimum=0)
    repeat: int = axis(1, minimum=1)

    def modes(self, settings: "Settings | None" = None) -> tuple[str, ...]:
        """Return the modes to measure with these settings; None: the defaults."""
        settings = settings or Settings()
        is_compiled = settings.compiled and settings.compiled_context_length in (0, self.context_length)
        return (EAGER, COMPILED) if is_compiled and self.warmup_steps >= USUAL_WARMUP else (EAGER,)

    def row_keys(self, settings: "Settings | None" = None) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: those by the host clock."""
        return [key for mode in self.modes(settings) for key in mode_keys(mode)]


def mode_keys(mode: str) -> list[dict[str, str]]:
    """Return the keys of a mode's rows by the host clock."""
    first = (FIRST_STEP,) if mode == COMPILED else ()
    return [{"mode": mode, "phase": name, "clock": "host"} for name in (*first, *PHASES)]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares: the assignment's steps, and the stop rule.

    compiled: whether models are also compiled, which takes some 20 seconds a cell.
    compiled_context_length: the only context at which they are compiled; 0: at every one.
    """

    vocab_size: int = axis(10_000, minimum=2)
    compiled: bool = axis(True)
    compiled_context_length: int = axis(0, minimum=0)
    steps: int = axis(10, minimum=5)
    max_steps: int = axis(50, minimum=5)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(4.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)  # for the user's models
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)
