"""The rows of the fsdp stage: a run for every cell of which something was measured."""

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import side_by_side
from pipeline.stages.fsdp.rows import ROW_TYPES

NAMES = {
    "none": "no communication",
    "ddp": "DDP",
    "ddp_sharded": "DDP, sharded optimizer",
    "fsdp": "our FSDP",
    "fsdp_layers": "our FSDP by matrix",
    "torch_fsdp": "torch fully_shard",
}
NOTHING, DDP, DDP_SHARDED, OURS, _, TORCHS = NAMES.values()
AXES = ["precision", "size", "batch_size_per_rank", "context_length", "world_size"]


class Run(side_by_side.Run):
    """One cell: its ways to train side by side."""

    @property
    def held_bytes(self) -> pd.Series:
        """The bytes of KINDS together after a warm step."""
        return self._held.groupby(level=0, sort=False)["measured_bytes"].sum()

    @property
    def peak_bytes(self) -> pd.DataFrame:
        """The peak, columns measured and predicted; none on a CPU."""
        peaks = self.rows.loc[self.rows["kind"] == "peak", ["measured_bytes", "predicted_bytes"]]
        return peaks.set_axis(["measured", "predicted"], axis="columns")

    @property
    def sent_bytes(self) -> pd.Series:
        """The least bytes that a rank sends a step."""
        return self._traffic.groupby(level=0, sort=False)["sent_bytes"].sum()

    @property
    def captures(self) -> pd.DataFrame:
        """The captured steps."""
        return self.rows[self.rows["measures"] == "capture"]

    @property
    def exact(self) -> bool:
        """Tell whether all counts of bytes held and sent are those predicted, where there is a prediction."""
        counted = pd.concat([self._held, self._traffic]).dropna(subset="predicted_bytes")
        return bool((counted["measured_bytes"] == counted["predicted_bytes"]).all())

    @property
    def _held(self) -> pd.DataFrame:
        return self.rows[self.rows["kind"].isin(KINDS)]

    @property
    def _traffic(self) -> pd.DataFrame:
        return self.rows[self.rows["measures"] == "traffic"]

    def fullest_bytes(self, way: str) -> float | None:
        """Return a way's peak, on a CPU what it holds after a step; None if it has no figure."""
        found = self.peak_bytes["measured"].get(way, self.held_bytes.get(way))
        return None if found is None else float(found)


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their way and cell."""
    ways = rows["impl"].map(NAMES).fillna("your " + rows["impl"])
    return side_by_side.named(rows.assign(way=ways), ROW_TYPES, AXES, list(NAMES.values()))


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell of which something was measured; fp32 comes first."""
    return side_by_side.runs(named(rows), Run)
