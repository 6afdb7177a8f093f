"""Others' timings of plain attention beside ours, where shape and mode are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.table_rows import ok
from pipeline.stages.attention.cell import PHASES
from pipeline.stages.attention.report.facts import host_times

MODES = {"no": "eager", "yes": "compiled"}
PROBLEM = ["batch_size", "head_dim", "seq_len", "mode"]


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what, unit, theirs, ours, write_up and note of each mean time that a write-up has and we have too."""
    theirs = published.load("attention").assign(mode=lambda table: table["compiled"].map(MODES))
    columns = [*PROBLEM, "write_up", "note"]
    lines = [theirs[columns].assign(phase=phase, theirs=theirs[f"{phase}_ms"]) for phase in PHASES]
    theirs = pd.concat(lines, ignore_index=True).dropna(subset=["theirs"])
    mine = ok(host_times(rows)).rename(columns={"setting_batch_size": "batch_size", "mean_ms": "ours"})
    paired = mine[[*PROBLEM, "phase", "ours"]].merge(theirs, on=[*PROBLEM, "phase"])
    sizes = ", head_dim " + paired["head_dim"].astype(str) + ", length " + paired["seq_len"].astype(str)
    what = paired["mode"] + " " + paired["phase"] + sizes
    return paired.assign(what=what, unit="ms")
