"""Others' data-parallel steps beside ours of the same variant, model and number of ranks."""

import pandas as pd

from pipeline.report import published
from pipeline.report.side_by_side import whole_steps
from pipeline.report.table_rows import ok
from pipeline.stages.ddp.report.facts import label, named

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
    ours = ok(whole_steps(named(rows)))[["size", "world_size", "way", "cell_name", "median_ms"]]
    paired = _theirs().merge(ours, on=["size", "world_size", "way"])
    cells = paired["world_size"].astype(str) + " ranks, " + paired["cell_name"]
    what = "step of " + paired["size"] + ", " + paired["way"] + ", " + cells
    return paired.assign(what=what, unit="ms", theirs=paired["step_ms"], ours=paired["median_ms"])


def _theirs() -> pd.DataFrame:
    rows = published.load("ddp").rename(columns={"model": "size"})
    impls = rows["variant"].str.extract(f"^({'|'.join(IMPLS)})", expand=False).map(IMPLS)
    rows = rows.assign(way=[label(*pair) for pair in zip(impls, rows["bucket_mb"], strict=True)])
    return rows[(rows["rank"] == "all") & (rows["status"] == "ok")]
