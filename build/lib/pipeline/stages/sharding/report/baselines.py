"""Others' memory and step time with and without sharding beside ours of as many ranks."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.sharding.report.facts import OURS, PLAIN, runs


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' peaks and step times with ours of every run: what, unit, theirs, ours, write_up, note.

    They name no model, or not the one that their figures fit: the notes say so.
    """
    found = []
    for _, line in published.load("sharding").iterrows():
        optimizer = OURS if line["sharded"] == "yes" else PLAIN
        for run in runs(rows):
            if run.world_size != line["world_size"] or optimizer not in run.steps.index:
                continue
            shared = {"write_up": line["write_up"], "note": line["note"]}
            what = f"{optimizer}, {run.size}, {run.world_size} ranks, {run.name}"
            step_ms = run.steps.loc[optimizer, "median_ms"]
            found.append({"what": f"step: {what}", "unit": "ms", "theirs": line["step_ms"], "ours": step_ms, **shared})
            if optimizer in run.peak_bytes.index:
                peak_gb = run.peak_bytes.loc[optimizer, "measured"] / 1e9
                memory = {"unit": "GB", "theirs": line["peak_memory_gb"], "ours": peak_gb}
                found.append({"what": f"peak memory: {what}", **memory, **shared})
    return pd.DataFrame(found)
