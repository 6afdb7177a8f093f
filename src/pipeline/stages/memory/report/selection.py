"""Which rows of the memory tables answer which question."""

from typing import NamedTuple

import pandas as pd

from pipeline.formulas.peak_memory import CATEGORIES, MODES
from pipeline.report.table_rows import has_figures, ok
from pipeline.stages.memory.rows import ROW_TYPES

AXES = ["precision", "size", "context_length", "mode", "attention", "checkpoint_every"]
ORDERS = {
    "precision": ("fp32", "bf16"),
    "mode": MODES,
    "attention": ("eager", "tiled", "flash"),
}
MODE_WORDS = {
    "inference": "forward, no gradients",
    "forward": "forward, with gradients",
    "train_step": "training step",
}
CATEGORY_WORDS = {name: name.replace("_", " ") for name in CATEGORIES}

COMPOSITION = [f"{name}_bytes" for name in CATEGORIES]
PREDICTED_COMPOSITION = [f"predicted_{name}" for name in COMPOSITION]


def complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Add, empty, the columns that no row of this run fills; reading order."""
    missing = [name for name in ROW_TYPES.column_names() if name not in rows]
    return in_order(rows.assign(**dict.fromkeys(missing)))


def in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort by the axes, names in reading order."""

    def rank(column: pd.Series) -> pd.Series:
        order = ORDERS.get(column.name)
        return column if order is None else column.map(order.index)

    return rows.sort_values(AXES, key=rank, kind="stable", ignore_index=True)


def of_kind(rows: pd.DataFrame, kind: str) -> pd.DataFrame:
    """Keep the rows of one kind that carry figures."""
    return ok(rows[rows["kind"] == kind])


def plain(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the assignment's cells: eager attention, no checkpointing."""
    return rows[(rows["attention"] == "eager") & (rows["checkpoint_every"] == 0)]


def cell_peaks(rows: pd.DataFrame, step: str = "last") -> pd.DataFrame:
    """Give the peak of one recorded step of every cell, the first or the last: a row a cell, in reading order.

    Returns AXES, status, reason, the settings, machine, torch, phase, peak_bytes and COMPOSITION at that
    moment, and predicted_phase, predicted_bytes and PREDICTED_COMPOSITION at the moment predicted to be the highest.
    error: predicted over measured, less one. A cell without figures has its outcome alone.
    """
    peaks = rows[rows["kind"] == "peak"]
    failed = peaks[~has_figures(peaks["status"])]
    steps = ok(peaks)[ok(peaks)["step"] > 0]
    if steps.empty:
        return in_order(failed.assign(error=None, predicted_phase=None))
    wanted = steps.groupby(AXES)["step"].transform("max" if step == "last" else "min")
    steps = steps[steps["step"] == wanted]
    highest = steps.loc[steps.groupby(AXES)["peak_bytes"].idxmax()]
    predicted = steps.loc[steps.groupby(AXES)["predicted_bytes"].idxmax()]
    predicted = predicted.rename(columns={"phase": "predicted_phase"})
    measured = highest.drop(columns=["predicted_bytes", "predicted_at", *PREDICTED_COMPOSITION])
    columns = [*AXES, "predicted_phase", "predicted_bytes", "predicted_at", *PREDICTED_COMPOSITION]
    both = measured.merge(predicted[columns], on=AXES, validate="one_to_one")
    both = both.assign(error=both["predicted_bytes"] / both["peak_bytes"] - 1)
    return in_order(pd.concat([both, failed], ignore_index=True) if len(failed) else both)


def main_size(rows: pd.DataFrame) -> str:
    """Choose the model to speak of: the one with the most cells that have figures."""
    return ok(rows).drop_duplicates(AXES)["size"].mode().iloc[0]


def shown_context(rows: pd.DataFrame) -> int:
    """Choose the context length whose timelines are drawn: the longest that most cells have figures for."""
    lengths = ok(plain(rows)).drop_duplicates(AXES)["context_length"].value_counts()
    return int(lengths[lengths == lengths.max()].index.max())


class Unit(NamedTuple):
    """A unit of memory: its name, and its bytes."""

    name: str
    bytes: float


def unit_for(highest_bytes: float) -> Unit:
    """Choose decimal GB, or MB where all is below one GB."""
    return Unit("GB", 1e9) if highest_bytes >= 1e9 else Unit("MB", 1e6)


def variant(attention: str, checkpoint_every: int) -> str:
    """Name a variant: `eager`, `flash, a checkpoint every 4 blocks`."""
    if not checkpoint_every:
        return attention
    return f"{attention}, a checkpoint every {'block' if checkpoint_every == 1 else f'{checkpoint_every:.0f} blocks'}"
