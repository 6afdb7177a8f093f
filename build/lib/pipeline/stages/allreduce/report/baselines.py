"""Others' all-reduce times beside ours of the same backend, ranks on one node and size."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.allreduce.report.facts import groups

# 1024 MB of 2^20 bytes beside 1 GB of 10^9: nearer than that no two write-ups are.
SIZE_TOLERANCE = 0.1


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' mean times over all ranks with our means of single calls: what, unit, theirs, ours, write_up, note.

    They too timed calls one by one. Sizes agree within a tenth.
    """
    theirs = published.load("allreduce")
    theirs = theirs[(theirs["rank"] == "all") & theirs["ms"].notna()]
    ours = [(group, group.singles) for group in groups(rows) if group.nodes == 1]
    found = [
        {
            "what": f"all-reduce of {line['size_mb']:g} MB, {group.backend}, {group.world_size} ranks, single call",
            "unit": "ms",
            "theirs": line["ms"],
            "ours": call["mean_ms"],
            "write_up": line["write_up"],
            "note": line["note"],
        }
        for _, line in theirs.iterrows()
        for group, singles in ours
        if (group.backend, group.world_size) == (line["backend"], line["world_size"])
        for _, call in singles.iterrows()
        if abs(call["size_mb"] / line["size_mb"] - 1) <= SIZE_TOLERANCE
    ]
    return pd.DataFrame(found)
