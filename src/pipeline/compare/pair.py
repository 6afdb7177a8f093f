"""Compare two runs row by row: faster or slower, more memory, missing results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells import fields
from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import SETTING, Stage
from pipeline.compare.runs import Run
from pipeline.report.versus import JUDGED, REPEAT_COLUMNS, SLOWER, judged

ROW = ["stage", "cell", "row"]
KEYS = [*ROW, "quantity"]
COLUMNS = [*KEYS, *JUDGED, "reason", "repeats", "cards", "bytes", "work"]
# How long the GPU is busy in a step: a single number, without quartiles.
GPU_BUSY = "gpu_busy_ms"
# Times that depend on the host more than on what is measured.
HOST_TIMES = ("call_ms", "enqueue_ms")


@dataclass(frozen=True)
class Pair:
    """The differences between run A and run B, as tables; the suffixes `_a` and `_b` mark the columns of each run.

    times: rows with a time in both: KEYS, medians, repeats, COLUMNS of `versus` (ratio: how many times as fast B is),
    worse (slower by more than the tolerance). other_work: rows with values in both, but of different amounts of work,
    which are in neither `times` nor `memory`. memory: peaks that differ by more than the tolerance, with the ratio B to
    A. outcomes: rows whose outcome changed (`both` in the column `of`) and rows that only one run has (`left_only`,
    `right_only`); lost: both have the row, but only A has values. tolerance: a fraction.
    """

    times: pd.DataFrame
    other_work: pd.DataFrame
    memory: pd.DataFrame
    outcomes: pd.DataFrame
    tolerance: float

    @property
    def failure(self) -> str:
        """Why B is worse than A, or why they cannot be compared; empty otherwise."""
        slower, lost = self.times[self.times["worse"]], int(self.outcomes["lost"].sum())
        num_unrepeated = int(slower[["repeats_a", "repeats_b"]].lt(2).any(axis=1).sum())
        limit = f"{100 * self.tolerance:g}% ({num_unrepeated} of them without repeats)"
        reasons = {
            f"{len(slower)} times are slower by more than {limit}": not slower.empty,
            f"{lost} rows lost their values": lost,
            "no timing is in both runs": self.times.empty,
        }
        return ", ".join(reason for reason, is_true in reasons.items() if is_true)


def compare(a: Run, b: Run, tolerance: float) -> Pair:
    """Compare the rows of two runs; a difference below the fraction `tolerance` is not a failure."""
    values = [pd.DataFrame(_values(run), columns=COLUMNS).drop_duplicates(KEYS) for run in (a, b)]
    both = values[0].merge(values[1], on=KEYS, suffixes=("_a", "_b"))
    has_values = both["quantity"] != ""
    is_same = both["work_a"] == both["work_b"]
    other_work, both = both[has_values & ~is_same], both[is_same]
    statuses = [rows.drop_duplicates(ROW)[[*ROW, "status", "reason"]] for rows in values]
    rows = statuses[0].merge(statuses[1], "outer", ROW, suffixes=("_a", "_b"), indicator="of")
    rows = rows[(rows["of"] != "both") | (rows["status_a"] != rows["status_b"])]
    lost = rows["of"].eq("both") & rows["status_a"].isin(WITH_VALUES) & ~rows["status_b"].isin(WITH_VALUES)
    return Pair(
        _times(both.dropna(subset=["median_ms_a", "median_ms_b"]), tolerance),
        other_work.drop_duplicates(ROW, ignore_index=True),
        _memory(both.dropna(subset=["bytes_a", "bytes_b"]), tolerance),
        rows.assign(lost=lost),
        tolerance,
    )


def row_names(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Name a row of a frame by ROW: its stage, its cell without the repeat, its keys (text keys by value alone)."""
    words_by_name = [(name, word, f"{name}={word}") for name, word in words(row, stage).items()]
    keys = (
        word if isinstance(row[name], str) else pair_text
        for name, word, pair_text in words_by_name
        if name not in stage.axes
    )
    cell = (pair_text for name, _, pair_text in words_by_name if name in stage.axes)
    return {"stage": stage.name, "cell": " ".join(cell), "row": " ".join(keys)}


def words(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Return the values of a row's axes and keys as text, by name."""
    names = (*stage.naming_axes, *stage.row_types.key_columns())
    return {name: _word(row[name]) for name in names if pd.notna(row[name])}


def work(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Return how much work a row of a frame measured: the values of its type's WORK as text, by name."""
    names = stage.row_types.type_of(row, row).WORK
    values = {name: row.get(name, row.get(SETTING + name)) for name in names}
    return {name: _word(value) for name, value in values.items() if pd.notna(value)}


def _word(value: Any) -> str:
    return fields.text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _values(run: Run) -> Iterator[dict[str, Any]]:
    """Yield COLUMNS for each value: median and quartiles of a time, `bytes` of a memory peak.

    A row without values has one line, with an empty quantity.
    """
    for name, rows in run.frames.items():
        for row in rows.to_dict("records"):
            line = {column: row[column] for column in ("status", "reason", "repeats", "cards")}
            line["work"] = " ".join(f"{name}={word}" for name, word in work(row, run.stages[name]).items())
            found = _quantities(row) if row["status"] in WITH_VALUES else {}
            for quantity, value in (found or {"": {}}).items():
                yield {**row_names(row, run.stages[name]), **line, "quantity": quantity, **value}


def _quantities(row: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float) and pd.notna(value)}
    found: dict[str, dict[str, Any]] = {}
    for name, value in numbers.items():
        part = name.removeprefix("median_")
        if part != name and f"q1_{part}" in numbers:
            found[part] = {"median_ms": value, "q1_ms": row[f"q1_{part}"], "q3_ms": row[f"q3_{part}"]}
            found[part] |= {each: row.get(each) for each in REPEAT_COLUMNS} if part == "ms" else {}
        elif name == GPU_BUSY and value > 0:
            found[name] = dict.fromkeys(("median_ms", "q1_ms", "q3_ms"), value)
        elif name.startswith("peak_") and name.endswith("bytes") and value > 0:
            found[name] = {"bytes": value}
    return found


def _times(both: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    found = judged(both, "_a", "_b")
    found["worse"] = (found["verdict"] == SLOWER) & (found["ratio"].astype(float) * (1 + tolerance) < 1)
    # Largest difference first; times that depend on the host last.
    apart = np.log(found["ratio"].astype(float)).abs()
    found = found.assign(apart=apart, of_host=found["quantity"].isin(HOST_TIMES))
    found = found.sort_values(["of_host", "apart"], ascending=[True, False], kind="stable", ignore_index=True)
    return found.drop(columns=["of_host", "apart"])


def _memory(peaks: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    peaks = peaks.assign(ratio=peaks["bytes_b"] / peaks["bytes_a"])
    differs = np.abs(np.log(peaks["ratio"].astype(float))) > np.log1p(tolerance)
    # Rows of a cell with the same peaks, such as its phases, appear once.
    return peaks[differs].drop_duplicates(["stage", "cell", "quantity", "bytes_a", "bytes_b"], ignore_index=True)
