"""Where does a training step's memory go?"""

from dataclasses import dataclass, replace

from pipeline.cells.fields import axis
from pipeline.formulas.activations import Workload
from pipeline.formulas.checkpointing import KINDS
from pipeline.formulas.peak_memory import MODE_PHASES
from pipeline.formulas.sizes import SIZES, ModelSize

SPLIT_AXIS = "precision"
KEEPS_FILES = True


@dataclass(frozen=True)
class Cell:
    """One model, context and precision; forward only (with or without gradients) or whole training steps.

    `num_layers` replaces the size's number of blocks; 0 leaves it.
    """

    gpus = 1  # on a machine that has any

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("2.7B", allowed=SIZES)
    context_length: int = axis(256, minimum=1)
    mode: str = axis("train_step", allowed=MODE_PHASES)
    attention: str = axis("eager", allowed=("eager", "tiled", "flash", "sdpa"))
    checkpoint_every: int = axis(0, minimum=0)
    checkpointing: str = axis("segments", allowed=KINDS)
    num_layers: int = axis(0, minimum=0)

    @property
    def model_size(self) -> ModelSize:
        """The model's size, with `num_layers` blocks if the cell sets that."""
        size = SIZES[self.size]
        return replace(size, num_layers=self.num_layers or size.num_layers)

    def workload(self, vocab_size: int, batch_size: int, device_type: str) -> Workload:
        """Return the input of the memory formulas."""
        return Workload(
            self.model_size,
            vocab_size,
            batch_size,
            self.context_length,
            self.precision,
            self.attention,
            self.checkpoint_every,
            device_type,
            self.checkpointing,
        )

    def row_keys(self) -> list[dict[str, str]]:
        """Return the key of the single row of a cell that could not be measured."""
        return [{"kind": "peak"}]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the assignment's batch, and how the step is timed after recording."""

    batch_size: int = axis(4, minimum=1)
    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(2, minimum=0)
    steps: int = axis(10, minimum=10)
    max_steps: int = axis(30, minimum=10)
    rel_error: float = axis(0.01, minimum=0)
    budget_s: float = axis(3.0, minimum=0)
    unstable_rel_error: float = axis(0.05, minimum=0)
    threads: int = axis(0, minimum=0)
