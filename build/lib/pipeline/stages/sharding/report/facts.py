"""The rows of the sharding stage: a run for every cell of which something was measured."""

from functools import cached_property

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import memory_and_time, side_by_side

NAMES = {"adamw": "unsharded AdamW", "sharded": "our ShardedOptimizer", "torch_zero": "torch ZeroRedundancyOptimizer"}
PLAIN, OURS, TORCHS = NAMES.values()
# A training step as it goes on and on: the first one begins without optimizer state.
MOMENTS = ["initialised", "before_step", "after_step"]


class Run(memory_and_time.Run):
    """One cell: its optimizers side by side."""

    KINDS = KINDS

    @cached_property
    def memory(self) -> pd.DataFrame:
        """The bytes of each kind after a warm step, and the peaks on either side of its update."""
        peaks = (self.rows["moment"] == "before_step") & (self.rows["kind"] == "peak")
        return self.rows[(self.rows["moment"] == "after_step") | peaks]

    @property
    def peaks_bytes(self) -> pd.DataFrame:
        """The peak up to each moment."""
        peaks = self.rows[self.rows["kind"] == "peak"]
        return peaks.pivot(columns="moment", values="measured_bytes").reindex(columns=MOMENTS)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their optimizer and cell."""
    ways = rows["impl"].map(NAMES).fillna("your " + rows["impl"])
    return side_by_side.named(rows.assign(way=ways), list(NAMES.values()))


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell of which something was measured; fp32 comes first."""
    return side_by_side.runs(named(rows), Run)
