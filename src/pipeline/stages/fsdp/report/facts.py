"""The rows of the fsdp stage, parsed once: a run for every cell of which something was measured."""

from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report.side_by_side import cell_names
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.fsdp.cell import COLLECTIVES, IMPLS, TRAIN_STEP

PRECISIONS = ("fp32", "bf16")
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
# What a table lacks when no row of it has a figure.
COLUMNS = (
    *("reason", "phase", "clock", "kind", "collective", "n", "median_ms", "q1_ms", "q3_ms", "loss"),
    *("measured_bytes", "predicted_bytes", "sent_bytes", "exposed_communication_ms", "gather_ms", "gather_exposed_ms"),
)


@dataclass(frozen=True)
class Run:
    """One cell: its ways to train side by side; every table has a row a way.

    name: the precision, and what else tells it from other cells. whole: the whole steps by the host clock, those
    without a figure too. kinds_bytes: bytes of KINDS after a warm step. peak_bytes: columns measured and predicted;
    empty on a CPU. sent_bytes: least that a rank sends a step. captures: the captured steps. exact: whether all counts
    of bytes held and sent are those predicted, where there is a prediction.
    """

    name: str
    size: str
    world_size: int
    whole: pd.DataFrame
    kinds_bytes: pd.DataFrame
    peak_bytes: pd.DataFrame
    sent_bytes: pd.Series
    captures: pd.DataFrame
    exact: bool

    @property
    def steps(self) -> pd.DataFrame:
        """The whole steps that have a figure."""
        return ok(self.whole)

    def fullest_bytes(self, way: str) -> float | None:
        """Return a way's peak, on a CPU what it holds after a step; None if it has no figure."""
        if way in self.peak_bytes.index:
            return float(self.peak_bytes.loc[way, "measured"])
        return float(self.kinds_bytes.loc[way].sum()) if way in self.kinds_bytes.index else None


def whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the whole steps in reading order, with names for people; those without a figure too."""
    named = _named(rows)
    return named[(named["phase"] == TRAIN_STEP) & (named["clock"] == "host")]


def runs(rows: pd.DataFrame) -> list[Run]:
    """Parse the rows of all tables; fp32 comes first. A cell without any figure is left out."""
    cells = [cell for _, cell in _named(rows).groupby("cell_name", sort=False)]
    return [_run(cell) for cell in cells if not ok(whole_steps(cell)).empty]


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *COLUMNS])))
    rows = rows.assign(way=rows["impl"].map(NAMES), cell_name=cell_names(rows, AXES))
    rows["way"] = rows["way"].fillna("your " + rows["impl"])
    return in_order(rows, [*AXES, "impl"], {"precision": PRECISIONS, "impl": IMPLS})


def _run(cell: pd.DataFrame) -> Run:
    whole, measured = whole_steps(cell).set_index("way"), ok(cell).set_index("way")
    first = ok(whole).iloc[0]
    memory, traffic = (measured[measured["measures"] == what] for what in ("memory", "traffic"))
    counted = memory[memory["kind"].isin(KINDS)]
    peaks = memory.loc[memory["kind"] == "peak", ["measured_bytes", "predicted_bytes"]]
    predicted = pd.concat([counted, traffic[traffic["collective"].isin(COLLECTIVES)]]).dropna(subset="predicted_bytes")
    return Run(
        name=first["cell_name"],
        size=first["size"],
        world_size=int(first["world_size"]),
        whole=whole,
        kinds_bytes=counted.pivot(columns="kind", values="measured_bytes").reindex(columns=KINDS),
        peak_bytes=peaks.set_axis(["measured", "predicted"], axis="columns"),
        sent_bytes=traffic.groupby(level=0, sort=False)["sent_bytes"].sum(),
        captures=measured[measured["measures"] == "capture"],
        exact=bool((predicted["measured_bytes"] == predicted["predicted_bytes"]).all()),
    )
