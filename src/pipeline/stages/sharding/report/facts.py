"""The rows of the sharding stage: a run for every cell of which something was measured."""

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import side_by_side
from pipeline.stages.sharding.cell import COLLECTIVES, IMPLS, PHASES
from pipeline.stages.sharding.rows import ROW_TYPES

NAMES = {"adamw": "unsharded AdamW", "sharded": "our ShardedOptimizer", "torch_zero": "torch ZeroRedundancyOptimizer"}
PLAIN, OURS, TORCHS = NAMES.values()
# A training step as it goes on and on: the first one begins without optimizer state.
WARM = ("before_step", "after_step")


class Run(side_by_side.Run):
    """One cell: its optimizers side by side."""

    @property
    def optimizer_ms(self) -> pd.Series:
        """The median time of the optimizer's part of a step."""
        return self.rows.loc[self.rows["phase"] == PHASES[-1], "median_ms"].groupby(level=0, sort=False).first()

    @property
    def kinds_bytes(self) -> pd.DataFrame:
        """The bytes of each of KINDS after a warm step."""
        held = self._held[self._held["moment"] == WARM[1]]
        return held.pivot(columns="kind", values="measured_bytes").reindex(columns=KINDS)

    @property
    def peaks_bytes(self) -> pd.DataFrame:
        """The peak up to each moment."""
        peaks = self.rows[self.rows["kind"] == "peak"]
        return peaks.pivot(columns="moment", values="measured_bytes").reindex(columns=["initialised", *WARM])

    @property
    def peak_bytes(self) -> pd.DataFrame:
        """The peak of a warm step, columns measured and predicted; none on a CPU."""
        peaks = self.rows[(self.rows["kind"] == "peak") & self.rows["moment"].isin(WARM)]
        peaks = peaks.groupby(level=0, sort=False)[["measured_bytes", "predicted_bytes"]].max()
        return peaks.set_axis(["measured", "predicted"], axis="columns")

    @property
    def sent_bytes(self) -> pd.DataFrame:
        """The least bytes that a rank sends a step, by collective."""
        traffic = self.rows[self.rows["measures"] == "traffic"]
        return traffic.pivot(columns="collective", values="sent_bytes").reindex(columns=COLLECTIVES)

    @property
    def exact(self) -> bool:
        """Tell whether all counts by kind are those predicted, where there is a prediction of ours."""
        counted = self._held[self._held["impl"].isin(IMPLS)]
        return bool((counted["measured_bytes"] == counted["predicted_bytes"]).all())

    @property
    def _held(self) -> pd.DataFrame:
        return self.rows[(self.rows["measures"] == "memory") & self.rows["kind"].isin(KINDS)]


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their optimizer and cell."""
    ways = rows["impl"].map(NAMES).fillna("your " + rows["impl"])
    axes = ["precision", "size", "world_size"]
    return side_by_side.named(rows.assign(way=ways), ROW_TYPES, axes, list(NAMES.values()))


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell of which something was measured; fp32 comes first."""
    return side_by_side.runs(named(rows), Run)
