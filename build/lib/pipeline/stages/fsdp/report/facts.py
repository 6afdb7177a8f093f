"""The rows of the fsdp stage: a run for every cell of which something was measured."""

import pandas as pd

from pipeline.formulas.training_state import KINDS
from pipeline.report import memory_and_time, side_by_side

NAMES = {
    "none": "no communication",
    "ddp": "our DDP",
    "ddp_sharded": "our DDP, sharded optimizer",
    "fsdp": "our FSDP",
    "fsdp_layers": "our FSDP by matrix",
    "torch_fsdp": "torch fully_shard",
}
NOTHING, DDP, DDP_SHARDED, OURS, _, TORCHS = NAMES.values()


class Run(memory_and_time.Run):
    """One cell: its ways to train side by side."""

    KINDS = KINDS


def named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with the names of their way and cell."""
    ways = rows["impl"].map(NAMES).fillna("your " + rows["impl"])
    return side_by_side.named(rows.assign(way=ways), list(NAMES.values()))


def runs(rows: pd.DataFrame) -> list[Run]:
    """Make a run of every cell of which something was measured; fp32 comes first."""
    return side_by_side.runs(named(rows), Run)
