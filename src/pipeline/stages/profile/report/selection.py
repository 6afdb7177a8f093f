"""Which rows of the profile tables answer which question."""

import json

import pandas as pd

from pipeline.formulas.parameters import parameter_count
from pipeline.formulas.sizes import SIZES
from pipeline.report.table_rows import ok, spread
from pipeline.stages.profile.cell import PASSES

BY_SIZE = tuple(sorted(SIZES, key=lambda name: parameter_count(SIZES[name], vocab_size=0)))
ORDERS = {"precision": ("fp32", "bf16"), "size": BY_SIZE, "captured_by": ("nsys", "torch.profiler")}
CELL = ["precision", "size", "context_length", "profiler"]

# Ranges as people read them.
WORDS = {
    "inference": "inference",
    "forward_backward": "forward + backward",
    "train_step": "train step",
    "train_step/forward": "train step: forward",
    "train_step/loss": "train step: loss",
    "train_step/backward": "train step: backward",
    "train_step/optimizer": "train step: optimizer",
}

# The context length at which most others report, so the one to show first.
PREFERRED_CONTEXT = 256


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort cells, precisions widest first and sizes smallest first; the rows of a cell stay in their order."""

    def rank(column: pd.Series) -> pd.Series:
        order = ORDERS.get(column.name)
        return column if order is None else column.map(order.index)

    return rows.sort_values(CELL, key=rank, kind="stable", ignore_index=True)


def of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Keep the rows of one kind that carry figures, the unstable ones among them."""
    return ok(rows[rows["kind"] == kind])


def of_host_clock(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows by the host clock: one a cell and pass, whatever became of it."""
    return rows[(rows["kind"] == "time") & (rows["clock"] == "host")]


def main_captures(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep one capture of each configuration: where there are several, that by the profiler chosen for this machine."""
    return rows[rows["profiler"] == "auto"] if (rows["profiler"] == "auto").any() else rows


def times(rows: pd.DataFrame) -> pd.DataFrame:
    """Spread the median times: a row a cell and range, a column a clock, in ms; NaN where a clock was not read.

    Clocks: host (without a profiler), profiled (the host's, under the profiler), span, busy, kernel_sum. `unstable`:
    whether the host clock's median is not known well.
    """
    found = of_kind(rows, "time")
    wide = spread(found, [*CELL, "range"], "clock", "median_ms")
    wide = wide.reindex(columns=["host", "profiled", "span", "busy", "kernel_sum"]).reset_index()
    unstable = found.loc[found["status"] == "unstable", [*CELL, "range"]].assign(unstable=True)
    table = wide.merge(unstable, on=[*CELL, "range"], how="left")
    return table.assign(unstable=table["unstable"].notna())


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Spread the categories' shares of a range's kernel time: a row a cell and range, a column a category, 0 to 1."""
    found = of_kind(rows, "category")
    wide = spread(found, [*CELL, "range"], "category", "share_pct")
    return (wide.fillna(0) / 100).reset_index()


def kernels(rows: pd.DataFrame, path: str) -> pd.DataFrame:
    """Keep the kernels of one range, those with the most time first in each cell."""
    found = of_kind(rows, "kernel")
    return found[found["range"] == path]


def main_context(rows: pd.DataFrame) -> int:
    """Choose the context length to show first: 256, else the longest that the most sizes were captured at."""
    captured = of_kind(rows, "category").groupby("context_length")["size"].nunique()
    if PREFERRED_CONTEXT in captured.index:
        return PREFERRED_CONTEXT
    return int(captured[captured == captured.max()].index.max())


def at_context(rows: pd.DataFrame, context_length: int) -> pd.DataFrame:
    """Keep one context length."""
    return rows[rows["context_length"] == context_length]


def reference_cell(rows: pd.DataFrame, context_length: int) -> dict:
    """Choose the cell whose kernels are shown one by one: the first precision, the largest size captured in all passes.

    Returns CELL by name.
    """
    here = at_context(of_kind(rows, "category"), context_length)
    whole = here.groupby(CELL, sort=False)["range"].agg(lambda found: set(PASSES) <= set(found))
    cells = pd.DataFrame(list(whole[whole].index if whole.any() else whole.index), columns=CELL)
    first = cells[cells["precision"] == cells["precision"].iloc[0]]
    return first.iloc[-1].to_dict()


def of_cell(rows: pd.DataFrame, cell: dict) -> pd.DataFrame:
    """Keep the rows of one cell."""
    return rows[(rows[list(cell)] == pd.Series(cell)).all(axis=1)]


def layer_events(rows: pd.DataFrame, cell: dict) -> pd.DataFrame:
    """Give the events of the layer that a cell shows: name, category, path, stream, start_us, duration_us.

    Empty where the cell has no layer.
    """
    found = of_cell(of_kind(rows, "layer"), cell)
    events = json.loads(found["events"].iloc[0]) if len(found) else []
    return pd.DataFrame(events, columns=["name", "category", "path", "stream", "start_us", "duration_us"])
