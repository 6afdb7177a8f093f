"""Compare two runs row by row: faster or slower, more memory, missing results."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.compare.figures import KEYS, figures
from pipeline.compare.runs import Run
from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED, judge

ROW = KEYS[:3]
# In table order: the worst first.
ORDER = (SLOWER, UNDECIDED, FASTER, SAME)


@dataclass(frozen=True)
class Pair:
    """What differs between run A and run B, as tables; `_a` and `_b` end the columns of either.

    times: of rows with figures in both: KEYS, medians, repeats, and ratio (how many times as fast B is), low, high,
    verdict, worse (slower by more than the tolerance). memory: peaks that differ by more than it, with their ratio B to
    A. outcomes: rows whose outcome changed; lost: whether figures were. only_in_a, only_in_b: rows of which the other
    has nothing. tolerance: a fraction.
    """

    times: pd.DataFrame
    memory: pd.DataFrame
    outcomes: pd.DataFrame
    only_in_a: pd.DataFrame
    only_in_b: pd.DataFrame
    tolerance: float

    @property
    def failure(self) -> str:
        """Why B is worse than A, or cannot be compared; empty where it is neither."""
        slower, lost = int(self.times["worse"].sum()), int(self.outcomes["lost"].sum())
        reasons = {
            f"{slower} times are slower by more than {100 * self.tolerance:g}%": slower,
            f"{lost} rows lost their figures": lost,
            "no time is in both": self.times.empty,
        }
        return ", ".join(reason for reason, holds in reasons.items() if holds)


def compare(a: Run, b: Run, tolerance: float) -> Pair:
    """Compare the rows of two runs; differences below the fraction `tolerance` fail nothing."""
    rows_a, rows_b = figures(a.frames, a.stages), figures(b.frames, b.stages)
    both = rows_a.merge(rows_b, on=KEYS, suffixes=("_a", "_b"))
    return Pair(
        times=_judged(both[both["median_ms_a"].notna() & both["median_ms_b"].notna()], tolerance),
        memory=_memory(both, tolerance),
        outcomes=_outcomes(rows_a, rows_b),
        only_in_a=_only_in_first(rows_a, rows_b),
        only_in_b=_only_in_first(rows_b, rows_a),
        tolerance=tolerance,
    )


def _judged(both: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    lines = both.to_dict("records")
    sides = [
        {key: {name.removesuffix(key): value for name, value in line.items()} for key in ("_a", "_b")} for line in lines
    ]
    verdicts = pd.DataFrame(
        [judge(side["_a"], side["_b"]) for side in sides], columns=["ratio", "low", "high", "verdict"], index=both.index
    )
    found = pd.concat([both, verdicts], axis=1)
    found["worse"] = (found["verdict"] == SLOWER) & (found["ratio"].astype(float) * (1 + tolerance) < 1)
    order = found["verdict"].map(ORDER.index)
    return found.assign(order=order).sort_values(["order", "ratio"], kind="stable", ignore_index=True)


def _memory(both: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    peaks = both[both["bytes_a"].notna() & both["bytes_b"].notna()]
    peaks = peaks.assign(ratio=peaks["bytes_b"] / peaks["bytes_a"])
    differs = np.abs(np.log(peaks["ratio"].astype(float))) > np.log1p(tolerance)
    # Rows of a cell with the same peaks, such as its phases, appear once.
    return peaks[differs].drop_duplicates(["stage", "cell", "quantity", "bytes_a", "bytes_b"], ignore_index=True)


def _outcomes(rows_a: pd.DataFrame, rows_b: pd.DataFrame) -> pd.DataFrame:
    first = [rows.drop_duplicates(ROW)[[*ROW, "status", "reason"]] for rows in (rows_a, rows_b)]
    both = first[0].merge(first[1], on=ROW, suffixes=("_a", "_b"))
    changed = both[both["status_a"] != both["status_b"]]
    lost = changed["status_a"].isin(WITH_FIGURES) & ~changed["status_b"].isin(WITH_FIGURES)
    return changed.assign(lost=lost).reset_index(drop=True)


def _only_in_first(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the cells and, of cells that both have, the rows that the second run lacks."""
    rows = first.drop_duplicates(ROW)[[*ROW, "status"]]
    at, known = (pd.MultiIndex.from_frame(table[ROW]) for table in (rows, second))
    return rows[~at.isin(known)].reset_index(drop=True)
