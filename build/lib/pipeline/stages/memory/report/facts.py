"""The memory rows parsed once: a recording a cell, with its peaks, beside them what the formulas predict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import pandas as pd

from pipeline.formulas.activations import Workload
from pipeline.formulas.checkpointing import KINDS
from pipeline.formulas.peak_memory import CATEGORIES, MODES, peak_bytes
from pipeline.report.section import data_size
from pipeline.report.side_by_side import step_words
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.memory.cell import Cell

AXES = [field.name for field in fields(Cell)]
ORDERS = {
    "precision": ("fp32", "bf16"),
    "mode": MODES,
    "attention": ("eager", "tiled", "flash", "sdpa"),
    "checkpointing": KINDS,
}
MODE_WORDS = {
    "inference": "forward without gradients",
    "forward": "forward with gradients",
    "train_step": "training step",
}
ATTENTION_WORDS = {"eager": "plain attention", "tiled": "tiled attention", "flash": "flash attention", "sdpa": "SDPA"}
CATEGORY_WORDS = {name: name.replace("_", " ") for name in CATEGORIES}


@dataclass(frozen=True)
class Peak:
    """The highest moment of one phase of a step. begin_event: allocations and releases before the phase."""

    step: int
    phase: str
    begin_event: int
    total_bytes: int
    made_of: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Recording:
    """One cell with its rows. peaks: of every phase of the recorded steps; none of a cell that failed."""

    cell: Cell
    device_type: str
    rows: pd.DataFrame
    peaks: Sequence[Peak]

    def of(self, kind: str) -> pd.DataFrame:
        """Return the rows of one kind that have figures."""
        return ok(self.rows[self.rows["kind"] == kind])

    def only(self, kind: str) -> pd.Series | None:
        """Return the single row of a kind; None where there is none."""
        return next((row for _, row in self.of(kind).iterrows()), None)

    @property
    def measured(self) -> bool:
        """Tell whether there are peaks."""
        return bool(self.peaks)

    @property
    def batch_size(self) -> int:
        """The sequences of a batch."""
        return int(self.rows["setting_batch_size"].iloc[0])

    @property
    def status(self) -> str:
        """What became of it: that of the first row that is not ok, if any."""
        return next((status for status in self.rows["status"] if status != "ok"), "ok")

    @cached_property
    def step(self) -> pd.Series | None:
        """The time of a training step: median_ms, q1_ms and q3_ms; None where it was not timed."""
        return self.only("time")

    @property
    def last_step(self) -> dict[str, Peak]:
        """The peaks of the last recorded step, by phase."""
        last = max(peak.step for peak in self.peaks)
        return {peak.phase: peak for peak in self.peaks if peak.step == last}

    @property
    def peak(self) -> Peak:
        """The highest moment of the last recorded step."""
        return max(self.last_step.values(), key=lambda peak: peak.total_bytes)

    @property
    def plain(self) -> bool:
        """Tell whether it has eager attention and no checkpoints."""
        return self.cell.attention == "eager" and not self.cell.checkpoint_every and not self.cell.num_layers

    @property
    def workload(self) -> Workload:
        """All that the formulas take."""
        return self.cell.workload(int(self.rows["setting_vocab_size"].iloc[0]), self.batch_size, self.device_type)

    @property
    def predicted_bytes(self) -> int:
        """The peak by formula, computed here and not kept in the record: a better formula needs no new measurement."""
        return peak_bytes(self.workload, self.cell.mode)

    @property
    def error(self) -> float:
        """What the formula says over what was measured, less one."""
        return self.predicted_bytes / self.peak.total_bytes - 1

    @property
    def mode(self) -> str:
        """The words for its mode."""
        return MODE_WORDS[self.cell.mode]

    @property
    def setting(self) -> str:
        """Its model and workload: `2.7B, bf16, batch 4, context 1024`."""
        cell = self.cell
        layers = f" of {cell.num_layers} blocks" if cell.num_layers else ""
        return f"{cell.size}{layers}, {cell.precision}, batch {self.batch_size}, context {cell.context_length}"

    @property
    def variant(self) -> str:
        """Its attention and checkpoints: `plain attention`, `flash attention, a checkpoint every 4 blocks`."""
        attention = ATTENTION_WORDS[self.cell.attention]
        return f"{attention}, {self.checkpoints}" if self.cell.checkpoint_every else attention

    @property
    def checkpoints(self) -> str:
        """The words for its checkpoints: `no checkpoints`, `a checkpoint every 4 blocks`."""
        every = self.cell.checkpoint_every
        blocks = "block" if every == 1 else f"{every} blocks"
        if self.cell.checkpointing == "recursive":
            return "recursive checkpoints" + ("" if every == 1 else f" down to {blocks}")
        kept = " that keeps attention" if self.cell.checkpointing == "selective" else ""
        return f"a checkpoint every {blocks}{kept}" if every else "no checkpoints"

    @property
    def size(self) -> str:
        """Its peak in words."""
        return data_size(self.peak.total_bytes)

    @property
    def step_ms(self) -> float:
        """The median time of its step; NaN where it was not timed."""
        return math.nan if self.step is None else float(self.step["median_ms"])

    @property
    def time(self) -> str:
        """The time of its step in words, with a mark where it is unstable; it must have been timed."""
        return step_words(self.step)


def recordings(rows: pd.DataFrame) -> list[Recording]:
    """Parse the rows of all tables into one recording a cell, in reading order; those that failed too."""
    rows = in_order(rows, AXES, ORDERS)
    device_type = next(iter(rows["device_type"].dropna()), "cpu")
    return [_recording(cell, device_type) for _, cell in rows.groupby(AXES, sort=False)]


def _recording(rows: pd.DataFrame, device_type: str) -> Recording:
    first, peaks = rows.iloc[0], ok(rows[rows["kind"] == "peak"])
    values: dict[str, Any] = {name: first[name] if isinstance(first[name], str) else int(first[name]) for name in AXES}
    cell = Cell(**values)
    return Recording(cell, device_type, rows, [_peak(row) for _, row in peaks.iterrows()])


def _peak(row: pd.Series) -> Peak:
    made_of = {name: int(row[f"{name}_bytes"]) for name in CATEGORIES}
    return Peak(int(row["step"]), row["phase"], int(row["begin_event"]), int(row["peak_bytes"]), made_of)


def of_main_size(recorded: Sequence[Recording]) -> list[Recording]:
    """Keep the model to speak of: the one with the most recordings."""
    size = pd.Series([one.cell.size for one in recorded if one.measured]).mode()[0]
    return [one for one in recorded if one.cell.size == size]


def headline(recorded: Sequence[Recording]) -> Recording:
    """Choose the recording to speak of: a plain training step if there is one, at the longest context, in bf16."""

    def preference(one: Recording) -> tuple:
        cell = one.cell
        return MODES.index(cell.mode), one.plain, cell.context_length, cell.precision == "bf16"

    return max((one for one in recorded if one.measured), key=preference)


def plain_steps(recorded: Sequence[Recording]) -> list[Recording]:
    """Keep training steps with eager attention and no checkpoints."""
    return [one for one in recorded if one.plain and one.cell.mode == "train_step"]


def beside_variants(recorded: Sequence[Recording]) -> list[list[Recording]]:
    """Group training steps alike but for attention and checkpoints, where there are several; plain eager first."""
    steps = [one for one in recorded if one.cell.mode == "train_step"]
    groups = alike(steps, attention="eager", checkpoint_every=0, checkpointing="segments")
    return [group for group in groups if len(group) > 1 and any(one.measured for one in group)]


def alike(recorded: Sequence[Recording], **any_of: Any) -> list[list[Recording]]:
    """Group recordings whose cells differ at most in these axes."""
    groups: dict[Cell, list[Recording]] = {}
    for one in recorded:
        groups.setdefault(replace(one.cell, **any_of), []).append(one)
    return list(groups.values())
