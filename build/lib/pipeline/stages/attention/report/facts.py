"""Which rows of the attention stage answer which question, and where memory ends by formula and as seen."""

import math
from dataclasses import dataclass, replace

import pandas as pd

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape
from pipeline.report.table_rows import in_order, known, ok
from pipeline.stages.attention.cell import MODES, PHASES

ELEMENT_BYTES = 4  # fp32
ORDERS = {"mode": MODES, "phase": PHASES}
USUAL_HEAD_DIM = 64


def host_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what the host clock measured, in reading order."""
    return in_order(rows[rows["clock"] == "host"], ["head_dim", "seq_len", "mode", "phase"], ORDERS)


def eager(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep eager attention."""
    return rows[rows["mode"] == "eager"]


def usual(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the head_dim to show alone: 64, else the largest with an eager time."""
    measured = set(ok(eager(rows))["head_dim"])
    return rows[rows["head_dim"] == (USUAL_HEAD_DIM if USUAL_HEAD_DIM in measured else max(measured))]


def problems(rows: pd.DataFrame, mode: str) -> pd.DataFrame:
    """Keep one row a problem, that of the forward phase, in one mode; its memory columns are of both phases."""
    return rows[(rows["mode"] == mode) & (rows["phase"] == "forward")]


def without_workspace(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the libraries' workspaces out of what the allocator counted, as the formulas leave them out."""
    counted = ("before_backward_bytes", "peak_bytes")
    return rows.assign(**{name: rows[name] - rows["workspace_bytes"] for name in counted})


def longest_in_both_modes(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows, by (mode, phase), of the longest sequence that both modes did in both phases; empty without."""
    whole = ok(rows).groupby("seq_len").filter(lambda group: len(group) == len(MODES) * len(PHASES))
    return whole[whole["seq_len"] == whole["seq_len"].max()].set_index(["mode", "phase"])


@dataclass(frozen=True)
class Limit:
    """Where eager forward and backward of one head_dim stop to fit: by formula, and as seen."""

    shape: Shape  # of the longest sequence that was tried
    device_type: str
    memory_bytes: int
    longest_by_formula: int
    longest_done: int | None
    shortest_oom: int | None

    @property
    def agrees(self) -> bool:
        """Tell whether what fitted and what ran out are on the formula's sides."""
        fits = self.longest_done is None or self.longest_done <= self.longest_by_formula
        return fits and (self.shortest_oom is None or self.shortest_oom > self.longest_by_formula)

    @property
    def first_too_long(self) -> Shape:
        """Return the shortest problem seen to run out, or else the first power of two too long by formula."""
        beyond = 2 ** (math.floor(math.log2(max(self.longest_by_formula, 1))) + 1)
        return replace(self.shape, seq_len=self.shortest_oom or beyond)


def limit(eager_rows: pd.DataFrame) -> Limit:
    """Return where the eager rows of one head_dim stop to fit; one of them has to say how much memory there is."""
    said = known(eager_rows, "memory_bytes")
    row = said.loc[said["seq_len"].idxmax()]
    shape = shape_of(row, int(eager_rows["seq_len"].max()))
    memory_bytes = int(said["memory_bytes"].max())
    done = ok(eager_rows[eager_rows["phase"] == "backward"])["seq_len"]
    oom = eager_rows[eager_rows["status"] == "oom"]["seq_len"]
    return Limit(
        shape,
        row["device_type"],
        memory_bytes,
        attention.longest_that_fits(shape, ELEMENT_BYTES, row["device_type"], memory_bytes),
        int(done.max()) if len(done) else None,
        int(oom.min()) if len(oom) else None,
    )


def shape_of(row: pd.Series, seq_len: int) -> Shape:
    """Return the problem of a row, at another length."""
    return Shape(int(row["setting_batch_size"]), 1, seq_len, int(row["head_dim"]), bool(row["setting_is_causal"]))
