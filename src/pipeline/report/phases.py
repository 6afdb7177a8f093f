"""Show what happens within a step on several ranks: phases, and when it computes and communicates."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from pipeline.report.chart import Axis, Chart
from pipeline.report.formats import number, percent, text
from pipeline.report.frame import WHOLE_STEP
from pipeline.report.table import Table

PARTS = 80
PHASES = ("forward", "backward", "communication", "optimizer")


def lanes(name: str, title: str, captures: pd.DataFrame, kinds: Sequence[str]) -> Chart:
    """Draw captured steps: for each kind of work the share of each part of the step in which it ran."""
    drawn = [
        pd.DataFrame({"way": row["way"], "kind": kind, "at_pct": 100 * np.arange(PARTS) / PARTS, "busy_pct": busy})
        for row in captures.to_dict("records")
        for kind in kinds
        if isinstance(row[f"{kind}_busy_pct"], list)
        for busy in [[part.mean() for part in np.array_split(row[f"{kind}_busy_pct"], PARTS)]]
    ]
    rows = pd.concat(drawn, ignore_index=True) if drawn else pd.DataFrame(columns=["way", "kind", "at_pct", "busy_pct"])
    axes = Axis("at_pct", "time, in % of the step"), Axis("busy_pct", "busy (%)")
    return Chart(name, title, rows, "line", *axes, "kind", panel="way")


def phases(rows: pd.DataFrame) -> Table:
    """Write the phases of each way's step, of one case, and the share of the wait for gradients after backward."""
    by_gpu = rows["clock"] == "cuda_events"
    own = rows[by_gpu if by_gpu.any() else rows["clock"] == "host"].dropna(subset="median_ms")
    wide = own.pivot_table(index="way", columns="phase", values="median_ms", sort=False).reset_index()
    wide = wide.reindex(columns=["way", *PHASES, WHOLE_STEP])
    wide = wide.assign(share_pct=100 * wide["communication"] / wide[WHOLE_STEP])
    columns = [
        ("way", "way", text),
        ("forward (ms)", "forward", number),
        ("backward (ms)", "backward", number),
        ("wait after backward (ms)", "communication", number),
        ("optimizer (ms)", "optimizer", number),
        ("step (ms)", WHOLE_STEP, number),
        ("share of the wait", "share_pct", percent),
    ]
    return Table("phases", f"{rows['case'].iloc[0]}, the phases of a step:", wide, columns, all_rows=True)
