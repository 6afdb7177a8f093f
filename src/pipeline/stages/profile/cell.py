"""Which kernels take the time of inference and of a training step, and which part of the model launches them?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES

SPLIT_AXIS = "precision"
KEEPS_FILES = True

# What one capture holds, each as a range of this name: the forward pass alone and without gradients; forward, loss and
# backward; and with the optimizer.
PASSES = ("inference", "forward_backward", "train_step")
# A range with one more backward pass, whose parts have ranges too; captured where this pass was.
BACKWARD_BY_PART, BACKWARD_OF = "backward_by_part", "forward_backward"
# The parts of a training step, each with a range of its own inside it.
BACKWARD = "train_step/backward"
STEP_PARTS = ("train_step/forward", "train_step/loss", BACKWARD, "train_step/optimizer")
# The host clock without a profiler, and those of the capture.
CLOCKS = ("host", "profiled", "span", "busy", "kernel_sum")
# The ranges inside attention.
ATTENTION_PHASES = ("attention scores", "softmax", "final matmul")


@dataclass(frozen=True)
class Cell:
    """One model, context and precision, captured by nsys, by torch.profiler, or by the better one that works here."""

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("small", allowed=tuple(SIZES))
    context_length: int = axis(256, minimum=1)
    profiler: str = axis("auto", allowed=("auto", "nsys", "torch"))

    @property
    def gpus(self) -> int:
        """The GPUs it takes on a machine that has any."""
        return 1

    def row_keys(self) -> list[dict[str, str]]:
        """Return what names each row by the host clock: the rows of a cell that could not be measured."""
        return [{"kind": "time", "range": name, "clock": "host"} for name in PASSES]


@dataclass(frozen=True)
class Settings:
    """What every cell of the stage shares.

    captured_rounds: how often each pass is in the capture; top_kernels: how many kernels of a range become rows, all
    of them stand in the kept files. Warm-up and steps are those of the host clock, which runs without a profiler.
    """

    batch_size: int = axis(4, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(5, minimum=1)
    steps: int = axis(10, minimum=10)
    max_steps: int = axis(30, minimum=10)
    rel_error: float = axis(0.005, minimum=0)
    budget_s: float = axis(3.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    captured_rounds: int = axis(3, minimum=1)
    top_kernels: int = axis(10, minimum=1)
    threads: int = axis(0, minimum=0)
