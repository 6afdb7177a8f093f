"""The overhead of averaging by buckets as a formula has it, with the cost of an all-reduce of this machine."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas import buckets
from pipeline.formulas.collectives import LinearCost, fit_linear_cost
from pipeline.report.frame import with_figures

MB = 2**20


def by_formula(steps: pd.DataFrame, allreduce: pd.DataFrame) -> pd.DataFrame:
    """Return the bucketed steps, each with the overhead by formula: o, w, its own and the best bucket size's."""
    found = []
    for row in with_figures(steps[steps["impl"] == "bucketed"]).to_dict("records"):
        cost, total = fitted_cost(row, allreduce), row["gradient_bytes"]
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


def fitted_cost(row: Mapping, allreduce: pd.DataFrame) -> LinearCost | None:
    """Fit the back-to-back all-reduces of a step's backend and ranks; None where there are none to fit."""
    if allreduce.empty:
        return None
    burst = {"backend": row["backend"], "world_size": row["world_size"], "nodes": 1, "timing": "burst"}
    burst |= {"impl": "torch", "placement": "in_place"}
    alike = with_figures(allreduce)
    alike = alike[(alike[list(burst)] == pd.Series(burst)).all(axis=1)]
    try:
        return fit_linear_cost(alike["size_bytes"].astype(float), alike["median_ms"] / 1e3)
    except ValueError:
        return None
