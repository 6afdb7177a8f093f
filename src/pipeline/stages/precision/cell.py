"""What does low precision do to running sums, autocast and layer norm?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

from pipeline.cells.fields import axis
from pipeline.stages.precision.cases import AUTOCAST_DTYPES, EPSILONS, FORMAT_NAMES, METHODS, SUMS

SPLIT_AXIS = "experiment"
EXPERIMENTS = ("accumulation", "autocast", "layer_norm", "layer_norm_eps")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Cell:
    """One experiment on one device; its cases are the rows."""

    shares_host: ClassVar[bool] = True  # the cell measures no times and uses one core

    experiment: str = axis("accumulation", allowed=EXPERIMENTS)
    device: str = axis("cpu", allowed=DEVICES)

    @property
    def gpus(self) -> int:
        """The GPUs that the cell uses if there are any."""
        return 1 if self.device == "cuda" else 0

    def row_keys(self) -> list[dict[str, str | int | float]]:
        """Return the keys of the rows of a cell that could not be measured."""
        keys: dict[str, Sequence[dict[str, str | int | float]]] = {
            "accumulation": [asdict(case) for case in SUMS],
            "autocast": [{"autocast_dtype": dtype} for dtype in AUTOCAST_DTYPES],
            "layer_norm": [{"dtype": dtype, "method": method} for dtype in FORMAT_NAMES for method in METHODS],
            "layer_norm_eps": [{"dtype": dtype, "eps": eps} for dtype in FORMAT_NAMES for eps in EPSILONS],
        }
        return list(keys[self.experiment])


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the inputs of layer norm, and one thread, so that no sum depends on the number of cores."""

    d_model: int = axis(1024, minimum=2)
    input_rows: int = axis(16, minimum=1)
    threads: int = axis(1, minimum=0)
