"""Which kernels take up a training step's time?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "precision"
KEEPS_FILES = True

# The passes of one capture, each a range of this name: the forward pass without gradients; forward, loss and backward;
# the same with the optimizer.
PASSES = ("inference", "forward_backward", "train_step")
# A range with one more backward pass, whose parts have ranges too; captured if BACKWARD_OF is among the passes.
BACKWARD_BY_PART, BACKWARD_OF = "backward_by_part", "forward_backward"
# The parts of a training step, each with a range of its own inside it.
BACKWARD = "train_step/backward"
STEP_PARTS = ("train_step/forward", "train_step/loss", BACKWARD, "train_step/optimizer")
# The host clock without a profiler, and the clocks of the capture.
CLOCKS = ("host", "profiled", "span", "busy", "kernel_sum")
# The ranges inside attention.
ATTENTION_PHASES = ("attention scores", "mask", "softmax", "final matmul")


@dataclass(frozen=True)
class Cell:
    """One model size, context length and precision, captured by nsys or torch.profiler; auto: nsys if it works here."""

    gpus = 1  # on a machine that has any

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("small", allowed=SIZES)
    context_length: int = axis(256, minimum=1)
    profiler: str = axis("auto", allowed=("auto", "nsys", "torch"))

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: those by the host clock."""
        return [{"kind": "time", "range": name, "clock": "host"} for name in PASSES]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells.

    captured_rounds: runs of each pass in the capture; top_kernels: kernels per range that become rows (kernels.csv, a
    kept file, has all). Warm-up and steps apply to the host clock, which runs without a profiler.
    """

    batch_size: int = axis(4, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(5, minimum=1)
    steps: int = axis(10, minimum=5)
    max_steps: int = axis(30, minimum=5)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(3.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    captured_rounds: int = axis(3, minimum=1)
    top_kernels: int = axis(10, minimum=1)
    threads: int = axis(0, minimum=0)
