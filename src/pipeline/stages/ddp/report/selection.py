"""Which rows of the ddp tables answer which question."""

import pandas as pd

from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.side_by_side import cell_names
from pipeline.report.table_rows import ok
from pipeline.stages.ddp.cell import CAPTURED_STEP, PHASES, TRAIN_STEP, VARIANTS, Variant

CELL = ["precision", "size", "world_size"]
PRECISIONS = ("fp32", "bf16")
NAMES = {"none": "no communication", "torch": "torch DDP"}
# What a table lacks when no row of it has a figure.
NUMBERS = (
    *("n", "median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "peak_bytes", "gradient_bytes", "all_reduces"),
    *("all_reduce_bytes", "rank_difference", "variant_difference", "weight_tolerance", "span_ms", "computation_ms"),
    *("communication_ms", "hidden_ms", "hidden_pct"),
)
WORDS = (*("reason", "backend", "computation_busy_pct", "communication_busy_pct"),)


def label(variant: Variant) -> str:
    """Name a variant for people: `bucketed 10 MB`."""
    name = NAMES.get(variant.impl, variant.impl)
    return name if variant.bucket_size_mb is None else f"{name} {variant.bucket_size_mb} MB"


# What communicates nothing comes first: the others are held against it.
READING_ORDER = tuple(label(variant) for variant in (VARIANTS[-1], *VARIANTS[:-1]))
OURS = tuple(label(variant) for variant in VARIANTS if variant.impl not in NAMES)
TORCHS = tuple(label(variant) for variant in VARIANTS if variant.impl == "torch")
BUCKETED = tuple(label(variant) for variant in VARIANTS if variant.impl == "bucketed")


def completed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with every column that the section reads, the variant's label and a cell name.

    The cell's name is its precision, and what else tells it from the others: `bf16, xl, 4 ranks`.
    """
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *NUMBERS, *WORDS])))
    sizes = [None if pd.isna(size) else int(size) for size in rows["bucket_size_mb"]]
    rows["variant"] = [label(Variant(*pair)) for pair in zip(rows["impl"], sizes, strict=True)]
    rows["cell_name"] = cell_names(rows, CELL)
    ranks = {name: place for place, name in enumerate((*PRECISIONS, *READING_ORDER))}
    by = ["precision", "size", "world_size", "variant"]
    return rows.sort_values(by, key=lambda column: column.map(lambda value: ranks.get(value, value)), kind="stable")


def steps(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the whole steps, by the host clock: a row a variant and cell, those without a figure too."""
    return rows[(rows["phase"] == TRAIN_STEP) & (rows["clock"] == "host")]


def phases(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the phases of the steps: by CUDA events on a GPU, by the host clock on a CPU."""
    return rows[rows["phase"].isin(PHASES)]


def captures(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the captured steps."""
    return rows[rows["phase"] == CAPTURED_STEP]


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """Spread one cell's median times: a row a variant, a column a phase; NaN where a variant lacks a phase."""
    found = pd.concat([phases(ok(rows)), steps(ok(rows))])
    return found.pivot(index="variant", columns="phase", values="median_ms").reindex(columns=[*PHASES, TRAIN_STEP])


def fitted_cost(allreduce: pd.DataFrame, backend: str, world_size: int, timing: str) -> LinearCost | None:
    """Fit latency and bandwidth to the all-reduces measured in this timing (burst or single); None without them."""
    if allreduce.empty or "median_ms" not in allreduce:
        return None
    alike = ok(allreduce).query(
        "backend == @backend and world_size == @world_size and timing == @timing"
        " and impl == 'torch' and placement == 'in_place'"
    )
    if timing == "single":
        alike = alike[alike["clock"] == "host"]
    try:
        return fit_linear_cost(alike["size_bytes"].astype(float), alike["median_ms"] / 1e3)
    except ValueError:
        return None
