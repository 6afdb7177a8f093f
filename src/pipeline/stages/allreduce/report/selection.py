"""Which rows of the allreduce tables answer which question."""

import pandas as pd

from pipeline.formulas.collectives import LinearCost, all_reduce_bus_factor, fit_linear_cost
from pipeline.report.table_rows import ok

BACKENDS = ("gloo", "nccl")
# What a table lacks when no row of it has a figure.
NUMBERS = (
    *("size_bytes", "calls", "parts", "n", "median_ms", "q1_ms", "q3_ms", "mean_ms"),
    *("rank_min_ms", "rank_mean_ms", "rank_max_ms"),
    *("algbw_gb_per_s", "busbw_gb_per_s", "cores", "oversubscribed"),
)
WORDS = ("impl", "placement", "clock", "reason")
CELL = ["backend", "world_size"]


def completed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in reading order, with every column that the section reads, and size and ranks as words."""
    rows = rows.reindex(columns=list(dict.fromkeys([*rows.columns, *NUMBERS, *WORDS])))
    rows = rows.assign(
        size_mb=rows["size_bytes"].astype(float) / 1e6,
        size=[f"{size / 1e6:g} MB" for size in rows["size_bytes"].astype(float)],
        ranks=[f"{count} ranks" for count in rows["world_size"]],
        oversubscribed=rows["oversubscribed"].eq(True),
    )
    return rows.sort_values([*CELL, "size_bytes"], kind="stable", ignore_index=True)


def bursts(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep torch's all-reduce, in place, in bursts: the figures that the section leads with."""
    return calls(rows, "burst")


def calls(rows: pd.DataFrame, timing: str, impl: str = "torch", placement: str = "in_place") -> pd.DataFrame:
    """Keep one timing of one way to make an all-reduce."""
    return rows[(rows["timing"] == timing) & (rows["impl"] == impl) & (rows["placement"] == placement)]


def singles(rows: pd.DataFrame, clock: str) -> pd.DataFrame:
    """Keep single calls by one clock."""
    found = calls(rows, "single")
    return found[found["clock"] == clock]


def most_ranks(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep each backend's rows with the most ranks."""
    return rows[rows["world_size"] == rows.groupby("backend")["world_size"].transform("max")]


def fits(rows: pd.DataFrame) -> pd.DataFrame:
    """Fit latency and bandwidth to the medians of each backend and world size, in bursts and by single calls.

    Returns CELL, ranks, timing, latency_us, algbw_gb_per_s, busbw_gb_per_s, half_mb (the size at which latency and
    transfer take as long as each other), worst_residual (share), worst_size, unstable (whether one of the medians is),
    and cost, the LinearCost; no line where there are too few sizes or the times do not grow.
    """
    found = []
    for timing, group in (("burst", bursts(ok(rows))), ("single", singles(ok(rows), "host"))):
        for (backend, world_size), cell in group.groupby(CELL, sort=False):
            sizes, times_s = cell["size_bytes"].astype(float), cell["median_ms"] / 1e3
            try:
                cost = fit_linear_cost(sizes, times_s)
            except ValueError:
                continue
            found.append({"backend": backend, "world_size": world_size, "timing": timing, **_fit(cost, cell)})
    table = pd.DataFrame(found)
    return table.sort_values([*CELL, "timing"], kind="stable", ignore_index=True) if found else table


def _fit(cost: LinearCost, cell: pd.DataFrame) -> dict:
    residuals = pd.Series(cost.residuals(cell["size_bytes"], cell["median_ms"] / 1e3), index=cell["size"])
    worst = residuals.abs().idxmax()
    return {
        "ranks": cell["ranks"].iloc[0],
        "latency_us": cost.latency_s * 1e6,
        "algbw_gb_per_s": cost.bytes_per_s / 1e9,
        "busbw_gb_per_s": cost.bytes_per_s / 1e9 * all_reduce_bus_factor(cell["world_size"].iloc[0]),
        "half_mb": cost.latency_s * cost.bytes_per_s / 1e6,
        "worst_residual": residuals[worst],
        "worst_size": worst,
        "unstable": (cell["status"] == "unstable").any(),
        "cost": cost,
    }
