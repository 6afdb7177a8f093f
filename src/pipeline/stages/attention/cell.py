"""What does plain attention cost in time and memory, and what does torch.compile change?"""

from dataclasses import dataclass

from pipeline.cells.fields import axis

SPLIT_AXIS = "head_dim"
MODES = ("eager", "compiled")
PHASES = ("forward", "backward")


@dataclass(frozen=True)
class Cell:
    """One attention problem in fp32; eager and compiled are its rows."""

    gpus = 1  # on a machine that has any

    head_dim: int = axis(64, minimum=1)
    seq_len: int = axis(1024, minimum=1)

    def row_keys(self) -> list[dict[str, str]]:
        """Return the keys of the rows of a cell that could not be measured: those by the host clock."""
        return [{"mode": mode, "phase": phase, "clock": "host"} for mode in MODES for phase in PHASES]


@dataclass(frozen=True)
class Settings:
    """Shared by all cells: the assignment's batch, without heads, and its number of passes."""

    batch_size: int = axis(8, minimum=1)
    is_causal: bool = axis(False)
    passes: int = axis(100, minimum=10)
    warmup_passes: int = axis(5, minimum=1)
    unstable_rel_error: float = axis(0.05, minimum=0)
    threads: int = axis(0, minimum=0)
