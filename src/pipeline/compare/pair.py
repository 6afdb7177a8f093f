"""Compare two runs row by row: faster or slower, more memory, missing results."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pipeline.cells.rows import WITH_FIGURES
from pipeline.compare.figures import KEYS, ROW, figures
from pipeline.compare.runs import Run
from pipeline.report.versus import FASTER, SAME, SLOWER, UNDECIDED, judged, side

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
    each = [rows.drop_duplicates(ROW)[[*ROW, "status", "reason"]] for rows in (rows_a, rows_b)]
    rows = each[0].merge(each[1], "outer", ROW, suffixes=("_a", "_b"), indicator="of")
    changed = rows[(rows["of"] == "both") & (rows["status_a"] != rows["status_b"])]
    lost = changed["status_a"].isin(WITH_FIGURES) & ~changed["status_b"].isin(WITH_FIGURES)
    return Pair(
        times=_judged(both.dropna(subset=["median_ms_a", "median_ms_b"]), tolerance),
        memory=_memory(both.dropna(subset=["bytes_a", "bytes_b"]), tolerance),
        outcomes=changed.assign(lost=lost),
        only_in_a=rows[rows["of"] == "left_only"],
        only_in_b=rows[rows["of"] == "right_only"],
        tolerance=tolerance,
    )


def _judged(both: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    found = both.assign(**judged(side(both, "_a"), side(both, "_b")))
    found["worse"] = (found["verdict"] == SLOWER) & (found["ratio"].astype(float) * (1 + tolerance) < 1)
    order = found["verdict"].map(ORDER.index)
    return found.assign(order=order).sort_values(["order", "ratio"], kind="stable", ignore_index=True)


def _memory(peaks: pd.DataFrame, tolerance: float) -> pd.DataFrame:
    peaks = peaks.assign(ratio=peaks["bytes_b"] / peaks["bytes_a"])
    differs = np.abs(np.log(peaks["ratio"].astype(float))) > np.log1p(tolerance)
    # Rows of a cell with the same peaks, such as its phases, appear once.
    return peaks[differs].drop_duplicates(["stage", "cell", "quantity", "bytes_a", "bytes_b"], ignore_index=True)
