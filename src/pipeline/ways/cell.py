"""Cells and settings shared by the stages that train on several ranks. Imports no torch: the workflow reads it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from pipeline.cells.fields import axis
from pipeline.formulas.sizes import SIZES

PHASES = ("forward", "backward", "communication", "optimizer")
TRAIN_STEP = "train_step"


@dataclass(frozen=True)
class RanksCell:
    """One model size, precision, batch and number of ranks; its rows are the ways to train.

    repeat: numbers the cells that repeat a measurement, each in its own process. ways: the columns that identify each
    way; whole_step: the columns that identify the row of its whole step.
    """

    ways: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    whole_step: ClassVar[Mapping[str, str]] = {}

    precision: str = axis("fp32", allowed=("fp32", "bf16"))
    size: str = axis("xl", allowed=SIZES)
    batch_size_per_rank: int = axis(2, minimum=1)
    context_length: int = axis(512, minimum=1)
    world_size: int = axis(2, minimum=2)
    repeat: int = axis(1, minimum=1)

    @property
    def gpus(self) -> int:
        """Number of GPUs that the cell uses, if there are any: one per rank."""
        return self.world_size

    def row_keys(self) -> list[dict[str, Any]]:
        """Return the keys of the rows of a cell that could not be measured: the whole step of each way."""
        return [{**way, **self.whole_step} for way in self.ways]


@dataclass(frozen=True)
class RanksSettings:
    """Shared by all cells. The ways take turns in `rounds`; every second round runs in reverse order."""

    vocab_size: int = axis(10_000, minimum=2)
    warmup_steps: int = axis(3, minimum=1)
    steps: int = axis(10, minimum=5)
    rounds: int = axis(2, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    check_timeout_s: float = axis(300.0, minimum=1)  # for a check of the user's own implementation
    timeout_s: float = axis(1800.0, minimum=1)
    threads: int = axis(0, minimum=0)


@dataclass(frozen=True)
class CapturedSettings(RanksSettings):
    """Settings of stages that capture a step of some ways; nsys: also with Nsight Systems, in separate processes."""

    nsys: bool = axis(False)
