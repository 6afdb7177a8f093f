"""Others' data-parallel steps beside ours, variant by variant: other machines, batches and often other models."""

import pandas as pd

from pipeline.report import published
from pipeline.report.markup import paragraphs
from pipeline.report.table_rows import ok
from pipeline.report.tables import markdown_folded_if_long, outcome, significant
from pipeline.stages.ddp.cell import Variant
from pipeline.stages.ddp.report.selection import label, steps

# Their words for a variant, by how they begin.
IMPLS = {
    "naive_per_parameter": "naive",
    "individual": "naive",
    "flat_single_allreduce": "flat",
    "overlap_per_parameter": "overlap",
    "bucketed_overlap": "bucketed",
}


def theirs() -> pd.DataFrame:
    """Read others' figures, those that stand for all ranks, with the variant that ours calls the same.

    The variant is empty where a source does not name it.
    """
    rows = published.load("ddp")
    rows = rows[rows["rank"] == "all"]
    impls = rows["variant"].map(
        lambda name: next((impl for start, impl in IMPLS.items() if name.startswith(start)), "")
    )
    sizes = [None if pd.isna(size) else int(size) for size in rows["bucket_mb"]]
    labels = [label(Variant(*pair)) if pair[0] else "" for pair in zip(impls, sizes, strict=True)]
    return rows.assign(ours=labels)


def beside_ours(rows: pd.DataFrame) -> str:
    """Write others' figures as a table, with ours of the same model and number of ranks, and their doubts under it."""
    found = theirs()
    table = pd.DataFrame(
        {
            "source": found["write_up"],
            "variant": found["variant"].str.replace("_", " "),
            "model": found["model"],
            "bucket (MB)": ["–" if pd.isna(value) else f"{value:g}" for value in found["bucket_mb"]],
            "step (ms)": [_step(*pair) for pair in zip(found["step_ms"], found["status"], strict=True)],
            "communication (ms)": [_or_dash(value) for value in found["comm_ms"]],
            "ours, step (ms)": [_ours(rows, line) for _, line in found.iterrows()],
        }
    )
    doubts = published.doubts_list(found)
    return paragraphs(markdown_folded_if_long(table, f"{len(table)} figures of others"), doubts)


def _step(step_ms: float, status: str) -> str:
    return significant(step_ms) if status == "ok" else outcome(status, None)


def _or_dash(value: float) -> str:
    return significant(value) if pd.notna(value) else "–"


def _ours(rows: pd.DataFrame, line: pd.Series) -> str:
    """Write our median of the same variant, model and number of ranks, a figure a cell; a dash where there is none."""
    same = ok(steps(rows))
    same = same[(same["variant"] == line["ours"]) & (same["size"] == line["model"])]
    same = same[same["world_size"] == line["world_size"]]
    figures = [f"{significant(ms)} ({cell})" for ms, cell in zip(same["median_ms"], same["cell_name"], strict=True)]
    return ", ".join(figures) or "–"
