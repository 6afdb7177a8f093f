"""Others' data-parallel steps beside ours of the same variant, model and number of ranks."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.ddp.cell import Variant
from pipeline.stages.ddp.report.facts import label, runs

# Their words for a variant, by how they begin.
IMPLS = {
    "naive_per_parameter": "naive",
    "individual": "naive",
    "flat_single_allreduce": "flat",
    "overlap_per_parameter": "overlap",
    "bucketed_overlap": "bucketed",
}


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' step times that stand for all ranks with ours: what, unit, theirs, ours, write_up, note."""
    found = [
        {
            "what": f"step of {step['size']}, {variant}, {run.world_size} ranks, {run.name}",
            "unit": "ms",
            "theirs": line["step_ms"],
            "ours": step["median_ms"],
            "write_up": line["write_up"],
            "note": line["note"],
        }
        for _, line in _theirs().iterrows()
        for run in runs(rows)
        if (run.size, run.world_size) == (line["model"], line["world_size"])
        for variant, step in run.steps.iterrows()
        if variant == line["ours"]
    ]
    return pd.DataFrame(found)


def _theirs() -> pd.DataFrame:
    rows = published.load("ddp")
    rows = rows[(rows["rank"] == "all") & (rows["status"] == "ok")]
    impls = rows["variant"].map(
        lambda name: next((impl for start, impl in IMPLS.items() if name.startswith(start)), None)
    )
    sizes = [None if pd.isna(size) else int(size) for size in rows["bucket_mb"]]
    return rows.assign(ours=[label(Variant(*pair)) if pair[0] else "" for pair in zip(impls, sizes, strict=True)])
