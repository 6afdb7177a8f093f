"""The overhead of averaging by buckets as a formula has it, with the cost of an all-reduce of this machine."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas import buckets
from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.frame import alike, with_figures

MB = 2**20
# NCCL sends less in other ways, whose times lie on another line; gradients are larger.
LEAST_BYTES = 100_000


def by_formula(steps: pd.DataFrame, collectives: pd.DataFrame) -> pd.DataFrame:
    """Return the bucketed steps, each with the overhead by formula: o, w, its own and the best bucket size's."""
    found = []
    for row in with_figures(steps[steps["impl"] == "bucketed"]).to_dict("records"):
        cost, total = fitted_cost(row, collectives), row["gradient_bytes"]
        if cost is None or not cost.latency_s:
            continue
        formula = {
            "latency_us": 1e6 * cost.latency_s,
            "gb_per_s": cost.bytes_per_s / 1e9,
            "formula_ms": 1e3 * buckets.bucketed_s(total, row["all_reduces"], cost),
            "best_mb": min(total, buckets.best_bucket_bytes(total, cost)) / MB,
            "best_ms": 1e3 * buckets.least_overhead_s(total, cost),
        }
        found.append(row | formula)
    return pd.DataFrame(found, columns=[*steps, "latency_us", "gb_per_s", "formula_ms", "best_mb", "best_ms"])


def fitted_cost(row: Mapping, collectives: pd.DataFrame) -> LinearCost | None:
    """Fit the back-to-back all-reduces of a step's backend and ranks; None where there are none to fit."""
    if collectives.empty:
        return None
    burst = {"backend": row["backend"], "world_size": row["world_size"], "nodes": 1, "timing": "burst"}
    burst |= {"impl": "torch", "placement": "in_place", "collective": "all_reduce", "dtype": "fp32"}
    found = alike(with_figures(collectives), burst)
    found = found[found["size_bytes"] >= LEAST_BYTES]
    try:
        return fit_linear_cost(found["size_bytes"].astype(float), found["median_ms"] / 1e3)
    except ValueError:
        return None
