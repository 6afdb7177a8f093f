"""Which rows of the sharding tables answer which question."""

import pandas as pd

from pipeline.report.side_by_side import cell_names
from pipeline.report.table_rows import ok
from pipeline.stages.sharding.cell import IMPLS, KINDS, PHASES, TRAIN_STEP

CELL = ["precision", "size", "world_size"]
PRECISIONS = ("fp32", "bf16")
NAMES = {"adamw": "AdamW", "sharded": "ShardedOptimizer", "torch_zero": "torch ZeroRedundancyOptimizer"}
MOMENT_WORDS = {
    "initialised": "after initialisation",
    "first_before_step": "first step, before the optimizer",
    "first_after_step": "first step, after it",
    "before_step": "warm step, before the optimizer",
    "after_step": "warm step, after it",
}
# What a table lacks when no row of it has a figure.
NUMBERS = (
    *(
        "n",
        "median_ms",
        "q1_ms",
        "q3_ms",
        "mean_ms",
        "std_ms",
        "weight_difference",
        "weight_tolerance",
        "measured_bytes",
    ),
    *("predicted_bytes", "calls", "sent_bytes"),
)
WORDS = ("reason", "backend", "phase", "clock", "moment", "kind", "collective")


def completed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with every column that the section reads, names for people and a cell name."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *NUMBERS, *WORDS])))
    rows = rows.assign(optimizer=rows["impl"].map(NAMES), cell_name=cell_names(rows, CELL))
    ranks = {name: place for place, name in enumerate((*PRECISIONS, *IMPLS, *MOMENT_WORDS))}
    by = ["precision", "size", "world_size", "impl", "moment"]
    return rows.sort_values(by, key=lambda column: column.map(lambda value: ranks.get(value, value)), kind="stable")


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the whole steps, by the host clock: a row an optimizer and cell, those without a figure too."""
    return rows[(rows["phase"] == TRAIN_STEP) & (rows["clock"] == "host")]


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the phases of the steps: by CUDA events on a GPU, by the host clock on a CPU."""
    return rows[rows["phase"].isin(PHASES)]


def memory(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the memory rows."""
    return rows[rows["measures"] == "memory"]


def kinds(rows: pd.DataFrame) -> pd.DataFrame:
    """Spread measured bytes over moments and kinds: a row an optimizer and moment, a column a kind.

    The kinds are KINDS, `counted` (their sum), `other` (what the allocator gave out besides), `allocated` and `peak`;
    the last three are NaN on a CPU, which has no allocator that counts.
    """
    found = memory(ok(rows)).pivot_table(
        index=["cell_name", "optimizer", "moment"], columns="kind", values="measured_bytes", sort=False
    )
    found = found.reindex(columns=[*KINDS, "allocated", "peak", "requested", "requested_peak"])
    found["counted"] = found[list(KINDS)].sum(axis=1)
    found["other"] = found["allocated"] - found["counted"]
    return found


def traffic(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of bytes communicated."""
    return ok(rows[rows["measures"] == "traffic"])
