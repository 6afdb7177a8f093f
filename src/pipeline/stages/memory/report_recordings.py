"""What the memory section is made of: a row a recorded cell, its words, its timeline, its time beside another's."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from pipeline.formulas.activations import Workload
from pipeline.formulas.peak_memory import MODES, peak_bytes
from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import interval, text
from pipeline.report.frame import alike, card_counts, known, with_figures
from pipeline.report.versus import judge
from pipeline.stages.memory.cell import Cell

AXES = ["precision", "size", "context_length", "mode", "attention", "checkpoint_every", "checkpointing", "num_layers"]
STEP, OPTIMIZER = "train_step", "optimizer"
ORDERS = {
    "precision": ("fp32", "bf16"),
    "mode": MODES,
    "attention": ("eager", "tiled", "flash", "sdpa"),
    "checkpointing": ("segments", "selective", "recursive"),
}
MODE_WORDS = {"inference": "forward, no gradients", "forward": "forward", STEP: "training step"}
ATTENTION_WORDS = {"eager": "plain", "tiled": "tiled", "flash": "our flash", "sdpa": "SDPA"}
GAIN = (("times as fast (interval)", "gain", text), ("verdict", "verdict", text))
# What `judge` compares.
TIME = ("median_ms", "q1_ms", "q3_ms", "samples_of_repeats", "spread_log_std", "spread_degrees")


def timeline(name: str, rows: pd.DataFrame, cells: Sequence[pd.Series], title: str = "") -> Chart:
    """Draw the memory of each kind over the recorded steps, a panel a cell."""
    lines = []
    for cell in cells:
        recorded = known(of_cell(rows, "timeline", cell), "events", "active_bytes")
        long = recorded[["category", "events", "active_bytes"]].explode(["events", "active_bytes"])
        sums = long.groupby("events", sort=False)["active_bytes"].sum().reset_index().assign(category="total")
        lines.append(pd.concat([sums, long]).assign(panel=setting_words(cell)))
    drawn = pd.concat(lines) if lines else pd.DataFrame(columns=["events", "active_bytes", "category", "panel"])
    drawn = drawn.assign(gb=drawn["active_bytes"].astype(float) / 1e9, events=drawn["events"].astype(float))
    drawn = drawn.assign(kind_of_memory=drawn["category"].map(words))
    return Chart(
        name,
        title or f"Active memory over the recorded steps: {setting_words(cells[0])}" if cells else title,
        drawn,
        "line",
        Axis("events", "allocations and releases so far"),
        Axis("gb", "active memory (GB)"),
        "kind_of_memory",
        panel="panel" if drawn["panel"].nunique() > 1 else "",
    )


def of_cell(rows: pd.DataFrame, kind: str, cell: pd.Series) -> pd.DataFrame:
    """Return the rows of one kind of the recording of a cell."""
    return with_figures(alike(rows[rows["kind"] == kind], cell[AXES].to_dict()))


def highest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a cell: the highest phase of its last step, or its outcome.

    Added: `before_update_bytes`, the highest of forward and backward; `predicted_bytes`, what the formulas give, and
    `formula`, that over the peak; the time of a step, with `status_ms` and `cards_ms`.
    """
    peaks = rows[rows["kind"] == "peak"]
    last = peaks[peaks["step"].eq(peaks.groupby(AXES)["step"].transform("max")) | peaks["step"].isna()]
    before = last[last["phase"] != OPTIMIZER].groupby(AXES)["peak_bytes"].max().rename("before_update_bytes")
    found = last.sort_values("peak_bytes", kind="stable").drop_duplicates(AXES, keep="last").sort_index()
    timed = rows[rows["kind"] == "time"].set_index(AXES)[[*TIME, "status", "cards"]]
    timed = timed.rename(columns={"status": "status_ms", "cards": "cards_ms"})
    found = found.drop(columns=list(TIME)).join(before, on=AXES).join(timed, on=AXES)
    # A cell that failed does not say where it ran.
    found["device_type"] = found["device_type"].fillna(next(iter(rows["device_type"].dropna()), "cpu"))
    predicted = [peak_bytes(workload(row), row["mode"]) for _, row in found.iterrows()]
    return found.assign(predicted_bytes=predicted, formula=predicted / found["peak_bytes"]).reset_index(drop=True)


def workload(row: pd.Series) -> Workload:
    """Return what the formulas take of a cell."""
    cell = Cell(**{name: row[name] if isinstance(row[name], str) else int(row[name]) for name in AXES})
    return cell.workload(int(row["setting_vocab_size"]), int(row["setting_batch_size"]), row["device_type"])


def beside_first(steps: pd.DataFrame) -> pd.DataFrame:
    """Add words, and the time of each step beside that of the first one which was timed."""
    timed = known(steps, "median_ms")
    base = time_of(timed.iloc[0]) if len(timed) else {}
    judged = [judge(base, time_of(row)) if place in timed.index[1:] else {} for place, row in steps.iterrows()]
    both = card_counts(steps.assign(base=base.get("cards_ms")), "cards_ms", "base")
    return steps.assign(
        words=steps["attention"].map(ATTENTION_WORDS),
        kept=[_checkpoints(row) for _, row in steps.iterrows()],
        gain=[interval(pd.Series(each)) if each else None for each in judged],
        verdict=[each.get("verdict") for each in judged],
        gpus=pd.Series(both, steps.index, dtype=object).where(steps["median_ms"].notna()),
    )


def time_of(row: pd.Series) -> dict[str, Any]:
    """Return the time of a step as `judge` takes it."""
    return row.to_dict() | {"status": row["status_ms"]}


def _checkpoints(row: pd.Series) -> str:
    every, kind = int(row["checkpoint_every"]), row["checkpointing"]
    if not every:
        return "none"
    words = {"recursive": "recursive", "selective": "attention kept", "segments": ""}[kind]
    return f"every {every}" + (f", {words}" if words else "")


def words(kind: str) -> str:
    """Write a kind of memory."""
    return kind.replace("_", " ")


def setting_words(cell: pd.Series) -> str:
    """Write what a cell recorded."""
    attention = ATTENTION_WORDS[cell["attention"]]
    return (
        f"{MODE_WORDS[cell['mode']]}, {cell['precision']}, context {cell['context_length']:.0f}, {attention} attention"
    )
