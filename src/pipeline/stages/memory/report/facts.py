"""The memory rows parsed once: a recording a cell, with its peaks, beside them what the formulas predict."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import pandas as pd

from pipeline.formulas.activations import Workload
from pipeline.formulas.checkpointing import KINDS
from pipeline.formulas.peak_memory import CATEGORIES, MODES, peak_bytes
from pipeline.report.section import data_size, ms
from pipeline.report.table_rows import in_order, ok
from pipeline.stages.memory.cell import Cell
from pipeline.stages.memory.rows import ROW_TYPES

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
CATEGORY_WORDS = {name: name.replace("_", " ") for name in CATEGORIES}


class Unit(NamedTuple):
    """A unit of memory: its name, and its bytes."""

    name: str
    bytes: float


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
    """One cell; of a failed one only the axes, the settings and the outcome.

    peaks: of every phase of the recorded steps. step: median_ms, q1_ms and q3_ms of a training step, if it was timed.
    residual, allocator, block: those rows, if there are any. largest: rows of the largest allocations, by size.
    block_saved: rows of the tensors that a block saves, by size.
    """

    cell: Cell
    batch_size: int
    vocab_size: int
    machine: str
    device_type: str
    status: str
    reason: str
    peaks: Sequence[Peak]
    timeline: Mapping[str, tuple[list[int], list[int]]]
    step: pd.Series | None
    residual: pd.Series | None
    allocator: pd.Series | None
    block: pd.Series | None
    largest: pd.DataFrame
    block_saved: pd.DataFrame

    @property
    def measured(self) -> bool:
        """Tell whether there are peaks."""
        return bool(self.peaks)

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
        return self.cell.workload(self.vocab_size, self.batch_size, self.device_type)

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
        """Its attention and checkpoints: `eager`, `flash, a checkpoint every 4 blocks`."""
        return f"{self.cell.attention}, {self.checkpoints}" if self.cell.checkpoint_every else self.cell.attention

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
        """The time of its step in words; it must have been timed."""
        return ms(self.step_ms)


def recordings(rows: pd.DataFrame) -> list[Recording]:
    """Parse the rows of all tables into one recording a cell, in reading order; those that failed too."""
    columns = dict.fromkeys([*rows.columns, *ROW_TYPES.column_names()])
    rows = in_order(rows.reindex(columns=list(columns)), AXES, ORDERS)
    device_types = rows["device_type"].dropna()
    device_type = device_types.iloc[0] if len(device_types) else "cpu"
    return [_recording(cell, device_type) for _, cell in rows.groupby(AXES, sort=False)]


def _recording(rows: pd.DataFrame, device_type: str) -> Recording:
    first, by_kind = rows.iloc[0], dict(tuple(ok(rows).groupby("kind")))
    none = rows.head(0)
    not_ok = rows[rows["status"] != "ok"]
    values = {name: first[name] if isinstance(first[name], str) else int(first[name]) for name in AXES}
    return Recording(
        cell=Cell(**values),
        batch_size=int(first["setting_batch_size"]),
        vocab_size=int(first["setting_vocab_size"]),
        machine=first["machine"],
        device_type=device_type,
        status=not_ok["status"].iloc[0] if len(not_ok) else "ok",
        reason=not_ok["reason"].iloc[0] if len(not_ok) else "",
        peaks=[_peak(row) for _, row in by_kind.get("peak", none).iterrows()],
        timeline={
            row["category"]: (row["events"], row["active_bytes"]) for _, row in by_kind.get("timeline", none).iterrows()
        },
        step=_only(by_kind.get("time", none)),
        residual=_only(by_kind.get("residual", none)),
        allocator=_only(by_kind.get("allocator", none)),
        block=_only(by_kind.get("block", none)),
        largest=by_kind.get("largest", none).sort_values("rank"),
        block_saved=by_kind.get("block_saved", none).sort_values("rank"),
    )


def _peak(row: pd.Series) -> Peak:
    made_of = {name: int(row[f"{name}_bytes"]) for name in CATEGORIES}
    return Peak(int(row["step"]), row["phase"], int(row["begin_event"]), int(row["peak_bytes"]), made_of)


def _only(rows: pd.DataFrame) -> pd.Series | None:
    return rows.iloc[0] if len(rows) else None


def main_size(recorded: Sequence[Recording]) -> str:
    """Choose the model to speak of: the one with the most recordings."""
    return str(pd.Series([recording.cell.size for recording in recorded if recording.measured]).mode()[0])


def headline(recorded: Sequence[Recording]) -> Recording:
    """Choose the recording to speak of: a plain training step if there is one, at the longest context, in bf16."""
    return max(
        (recording for recording in recorded if recording.measured),
        key=lambda recording: (
            MODES.index(recording.cell.mode),
            recording.plain,
            recording.cell.context_length,
            recording.cell.precision == "bf16",
        ),
    )


def plain_steps(recorded: Sequence[Recording]) -> list[Recording]:
    """Keep training steps with eager attention and no checkpoints."""
    return [recording for recording in recorded if recording.plain and recording.cell.mode == "train_step"]


def beside_variants(recorded: Sequence[Recording]) -> list[list[Recording]]:
    """Group training steps alike but for attention and checkpoints, where there are several; plain eager first."""
    groups: dict[Cell, list[Recording]] = {}
    for recording in recorded:
        if recording.cell.mode == "train_step":
            like = replace(recording.cell, attention="eager", checkpoint_every=0, checkpointing="segments")
            groups.setdefault(like, []).append(recording)
    return [group for group in groups.values() if len(group) > 1 and any(one.measured for one in group)]


def unit_for(recorded: Sequence[Recording]) -> Unit:
    """Choose decimal GB, or MB where all is below one GB."""
    highest = max(recording.peak.total_bytes for recording in recorded if recording.measured)
    return Unit("GB", 1e9) if highest >= 1e9 else Unit("MB", 1e6)


def outcomes(recorded: Sequence[Recording]) -> pd.DataFrame:
    """Return the status and reason of every recording, and `what` it is of."""
    return pd.DataFrame(
        {
            "what": f"{recording.setting}, {recording.mode}, {recording.variant}",
            "status": recording.status,
            "reason": recording.reason,
        }
        for recording in recorded
    )
