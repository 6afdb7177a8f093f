"""The rows of the sharding stage, parsed once: a run for every cell of which something was measured."""

from dataclasses import dataclass

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report.side_by_side import cell_names
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.sharding.cell import COLLECTIVES, IMPLS, PHASES, TRAIN_STEP

PRECISIONS = ("fp32", "bf16")
NAMES = {"adamw": "unsharded AdamW", "sharded": "our ShardedOptimizer", "torch_zero": "torch ZeroRedundancyOptimizer"}
PLAIN, OURS, TORCHS = NAMES.values()
# A training step as it goes on and on: the first one begins without optimizer state.
WARM = ("before_step", "after_step")
# What a table lacks when no row of it has a figure.
COLUMNS = (
    *("reason", "backend", "phase", "clock", "moment", "kind", "collective", "n", "median_ms", "q1_ms", "q3_ms"),
    *("weight_difference", "weight_tolerance", "measured_bytes", "predicted_bytes", "calls", "sent_bytes"),
)


@dataclass(frozen=True)
class Run:
    """One cell: its optimizers side by side; every table has a row an optimizer.

    name: the precision, and what else tells it from other cells. whole: the whole steps by the host clock, those
    without a figure too. phases_ms: median times by phase. kinds_bytes: bytes of KINDS after a warm step. peaks_bytes:
    peaks up to each moment. peak_bytes: columns measured and predicted, of a warm step; none on a CPU. sent_bytes:
    least that a rank sends a step, by collective. exact: whether all counts by kind are those predicted.
    """

    name: str
    size: str
    world_size: int
    whole: pd.DataFrame
    phases_ms: pd.DataFrame
    kinds_bytes: pd.DataFrame
    peaks_bytes: pd.DataFrame
    peak_bytes: pd.DataFrame
    sent_bytes: pd.DataFrame
    exact: bool

    @property
    def steps(self) -> pd.DataFrame:
        """The whole steps that have a figure."""
        return ok(self.whole)


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
    names = cell_names(rows, ["precision", "size", "world_size"])
    rows = rows.assign(optimizer=rows["impl"].map(NAMES), cell_name=names)
    rows["optimizer"] = rows["optimizer"].fillna("your " + rows["impl"])
    return in_order(rows, ["precision", "size", "world_size", "impl"], {"precision": PRECISIONS, "impl": IMPLS})


def _run(cell: pd.DataFrame) -> Run:
    whole, timed = whole_steps(cell).set_index("optimizer"), ok(cell)
    first = ok(whole).iloc[0]
    memory = timed[timed["measures"] == "memory"]
    counted = memory[memory["kind"].isin(KINDS)]
    predicted = counted[counted["impl"].isin(IMPLS)]
    peaks = memory[memory["kind"] == "peak"]
    warm = peaks[peaks["moment"].isin(WARM)].groupby("optimizer", sort=False)[["measured_bytes", "predicted_bytes"]]
    return Run(
        name=first["cell_name"],
        size=first["size"],
        world_size=int(first["world_size"]),
        whole=whole,
        phases_ms=_wide(timed[timed["phase"].isin(PHASES)], "phase", "median_ms", PHASES),
        kinds_bytes=_wide(counted[counted["moment"] == WARM[1]], "kind", "measured_bytes", KINDS),
        peaks_bytes=_wide(peaks, "moment", "measured_bytes", ("initialised", *WARM)),
        peak_bytes=warm.max().set_axis(["measured", "predicted"], axis="columns"),
        sent_bytes=_wide(timed[timed["measures"] == "traffic"], "collective", "sent_bytes", COLLECTIVES),
        exact=bool((predicted["measured_bytes"] == predicted["predicted_bytes"]).all()),
    )


def _wide(rows: pd.DataFrame, columns: str, values: str, order: tuple[str, ...]) -> pd.DataFrame:
    return rows.pivot(index="optimizer", columns=columns, values=values).reindex(columns=order)
