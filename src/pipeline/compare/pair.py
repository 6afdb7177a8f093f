"""Compare two runs row by row: faster or slower, more memory, missing results."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from pipeline.cells import fields
from pipeline.cells.rows import WITH_VALUES
from pipeline.cells.stage import Stage
from pipeline.compare.runs import Run
from pipeline.report.versus import JUDGED, SLOWER, judged

ROW = ["stage", "cell", "row"]
KEYS = [*ROW, "quantity"]
COLUMNS = [*KEYS, *JUDGED, "reason", "repeats", "cards", "bytes"]
OF_REPEATS = ("samples_of_repeats", "spread_log_std", "spread_degrees")
# How long the GPU works in a step: one number, where a time has a median and quartiles.
GPU_BUSY = "gpu_busy_ms"
# What depends on the host more than on what is measured.
OF_HOST = ("call_ms", "enqueue_ms")


@dataclass(frozen=True)
class Pair:
    """What differs between run A and run B, as tables; `_a` and `_b` end the columns of either.

    times: of rows with values in both: KEYS, medians, repeats, COLUMNS of `versus` (ratio: how many times as fast B
    is), worse (slower by more than the tolerance). memory: peaks that differ by more than it, with their ratio B to A.
    outcomes: rows whose outcome changed, of `both`, and those of one alone, `left_only` and `right_only` in the column
    `of`; lost: whether B has not the values of A. tolerance: a fraction.
    """

    times: pd.DataFrame
    memory: pd.DataFrame
    outcomes: pd.DataFrame
    tolerance: float

    @property
    def failure(self) -> str:
        """Why B is worse than A, or cannot be compared; empty where it is neither."""
        slower, lost = self.times[self.times["worse"]], int(self.outcomes["lost"].sum())
        once = int(slower[["repeats_a", "repeats_b"]].lt(2).any(axis=1).sum())
        by = f"{100 * self.tolerance:g}% ({once} of them without repeats)"
        reasons = {
            f"{len(slower)} times are slower by more than {by}": not slower.empty,
            f"{lost} rows lost their values": lost,
            "no time is in both": self.times.empty,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)


def compare(a: Run, b: Run, tolerance: float) -> Pair:
    """Compare the rows of two runs; differences below the fraction `tolerance` fail nothing."""
    values = [pd.DataFrame(_values(run), columns=COLUMNS).drop_duplicates(KEYS) for run in (a, b)]
    both = values[0].merge(values[1], on=KEYS, suffixes=("_a", "_b"))
    each = [rows.drop_duplicates(ROW)[[*ROW, "status", "reason"]] for rows in values]
    rows = each[0].merge(each[1], "outer", ROW, suffixes=("_a", "_b"), indicator="of")
    rows = rows[(rows["of"] != "both") | (rows["status_a"] != rows["status_b"])]
    lost = rows["of"].eq("both") & rows["status_a"].isin(WITH_VALUES) & ~rows["status_b"].isin(WITH_VALUES)
    return Pair(
        _times(both.dropna(subset=["median_ms_a", "median_ms_b"]), tolerance),
        _memory(both.dropna(subset=["bytes_a", "bytes_b"]), tolerance),
        rows.assign(lost=lost),
        tolerance,
    )


def named(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Name a row of a frame by ROW: its cell without the repeat, its keys, of which texts stand without their name."""
    named = [(name, word, f"{name}={word}") for name, word in words(row, stage).items()]
    keys = (word if isinstance(row[name], str) else whole for name, word, whole in named if name not in stage.axes)
    cell = (whole for name, _, whole in named if name in stage.axes)
    return {"stage": stage.name, "cell": " ".join(cell), "row": " ".join(keys)}


def words(row: Mapping[Any, Any], stage: Stage) -> dict[str, str]:
    """Return the values of a row's axes and keys, as words that name it."""
    names = (*stage.naming_axes, *stage.row_types.key_columns())
    return {name: _word(row[name]) for name in names if pd.notna(row[name])}


def _word(value: Any) -> str:
    return fields.text(int(value) if isinstance(value, float) and value.is_integer() else value)


def _values(run: Run) -> Iterator[dict[str, Any]]:
    """Yield COLUMNS of each value: a time has its median and quartiles, a peak of memory `bytes`.

    A row without values has one line, of quantity ``.
    """
    for name, rows in run.frames.items():
        for row in rows.to_dict("records"):
            line = {column: row[column] for column in ("status", "reason", "repeats", "cards")}
            found = _quantities(row) if row["status"] in WITH_VALUES else {}
            for quantity, value in (found or {"": {}}).items():
                yield {**named(row, run.stages[name]), **line, "quantity": quantity, **value}


def _quantities(row: Mapping[Any, Any]) -> dict[str, dict[str, Any]]:
    known = {name: value for name, value in row.items() if isinstance(value, int | float) and pd.notna(value)}
    found: dict[str, dict[str, Any]] = {}
    for name, value in known.items():
        part = name.removeprefix("median_")
        if part != name and f"q1_{part}" in known:
            found[part] = {"median_ms": value, "q1_ms": row[f"q1_{part}"], "q3_ms": row[f"q3_{part}"]}
            found[part] |= {each: row.get(each) for each in OF_REPEATS} if part == "ms" else {}
        elif name == GPU_BUSY and value > 0:
            found[name] = dict.fromkeys(("median_ms", "q1_ms", "q3_ms"), value)
        elif name.startswith("peak_") and name.endswith("bytes") and value > 0:
            found[name] = {"bytes": value}
    return found


def _times(both: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    found = judged(both, "_a", "_b")
    found["worse"] = (found["verdict"] == SLOWER) & (found["ratio"].astype(float) * (1 + tolerance) < 1)
    # The furthest apart first, and what hangs on the host last.
    apart = np.log(found["ratio"].astype(float)).abs()
    found = found.assign(apart=apart, of_host=found["quantity"].isin(OF_HOST))
    found = found.sort_values(["of_host", "apart"], ascending=[True, False], kind="stable", ignore_index=True)
    return found.drop(columns=["of_host", "apart"])


def _memory(peaks: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    peaks = peaks.assign(ratio=peaks["bytes_b"] / peaks["bytes_a"])
    differs = np.abs(np.log(peaks["ratio"].astype(float))) > np.log1p(tolerance)
    # Rows of a cell with the same peaks, such as its phases, appear once.
    return peaks[differs].drop_duplicates(["stage", "cell", "quantity", "bytes_a", "bytes_b"], ignore_index=True)
