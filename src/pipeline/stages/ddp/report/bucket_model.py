"""The overhead model fed with the measured all-reduce, beside the measured bucket sizes."""

import pandas as pd

from pipeline.formulas.buckets import best_bucket_bytes, best_num_buckets, bucketed_s, pipelined_s
from pipeline.formulas.collectives import LinearCost
from pipeline.report.table_rows import ok
from pipeline.stages.ddp.report.findings import overheads
from pipeline.stages.ddp.report.selection import BUCKETED, fitted_cost, medians, steps

BYTES_PER_MB = 2**20
TIMINGS = ("burst", "single")
MODELS = ("equal_ms", "pipelined_ms")


def fits(rows: pd.DataFrame, allreduce: pd.DataFrame) -> pd.DataFrame:
    """Give the fitted cost of an all-reduce and the optimum that follows, a row a timing, for one cell's rows.

    Columns timing, call_overhead_us, gb_per_s, buckets, bucket_mb, overhead_ms, cost; the optimum is NaN where the fit
    has no overhead a call. Empty without measured all-reduces of this backend and world size.
    """
    first = ok(steps(rows)).iloc[0]
    found = []
    for timing in TIMINGS:
        cost = fitted_cost(allreduce, first["backend"], int(first["world_size"]), timing)
        if cost is not None:
            found.append({"timing": timing, **_optimum(cost, first["gradient_bytes"]), "cost": cost})
    return pd.DataFrame(found)


def _optimum(cost: LinearCost, gradient_bytes: float) -> dict:
    fitted = {"call_overhead_us": cost.latency_s * 1e6, "gb_per_s": cost.bytes_per_s / 1e9}
    if cost.latency_s == 0:
        return fitted | dict.fromkeys(("buckets", "bucket_mb", "overhead_ms"), float("nan"))
    count = max(1.0, best_num_buckets(gradient_bytes, cost))  # fewer than one bucket cannot be
    return fitted | {
        "buckets": count,
        "bucket_mb": min(gradient_bytes, best_bucket_bytes(gradient_bytes, cost)) / BYTES_PER_MB,
        "overhead_ms": 1e3 * bucketed_s(gradient_bytes, count, cost),
    }


def beside_measured(rows: pd.DataFrame, cost: LinearCost) -> pd.DataFrame:
    """Put the modelled overhead beside the measured one, a row a bucket size, for one cell's rows.

    Columns bucket_size_mb, buckets, measured_ms (the step's time beyond one without communication), equal_ms (the
    model in which a bucket's gradients take as long as its bytes) and pipelined_ms (with the backward pass as long as
    it is without communication; buckets of equal size). Empty where nothing without communication was measured.
    """
    whole = ok(steps(rows)).set_index("variant")
    beyond_ms = overheads(whole)
    backward_ms = medians(rows)["backward"].get("no communication")
    found = []
    for name in [name for name in BUCKETED if name in beyond_ms.index]:
        line = whole.loc[name]
        count, total_bytes = int(line["all_reduces"]), line["gradient_bytes"]
        equal_sizes = [total_bytes / count] * count
        found.append(
            {
                "bucket_size_mb": int(line["bucket_size_mb"]),
                "buckets": count,
                "measured_ms": beyond_ms[name],
                "equal_ms": 1e3 * bucketed_s(total_bytes, count, cost),
                "pipelined_ms": 1e3 * pipelined_s(equal_sizes, backward_ms / 1e3, cost),
            }
        )
    return pd.DataFrame(found)


def verdict(rows: pd.DataFrame, allreduce: pd.DataFrame) -> dict:
    """Say what the model predicts for one cell and how it fares: its optimum beside the fastest size, its assumption.

    Empty where a fit or the step without communication is missing.
    """
    fitted = fits(rows, allreduce)
    if fitted.empty:
        return {}
    cost = fitted["cost"].iloc[0]
    table = beside_measured(rows, cost)
    if table.empty:
        return {}
    table = table.drop_duplicates("buckets")  # sizes that give the same buckets are the same thing
    whole_ms = 1e3 * cost.seconds(ok(steps(rows))["gradient_bytes"].iloc[0])
    backward_ms = medians(rows)["backward"]["no communication"]
    return {
        "timing": fitted["timing"].iloc[0],
        "buckets": fitted["buckets"].iloc[0],
        "bucket_mb": fitted["bucket_mb"].iloc[0],
        "has_optimum": bool(fitted["buckets"].notna().iloc[0]),
        "measured_best_mb": int(table.loc[table["measured_ms"].idxmin(), "bucket_size_mb"]),
        "equal_best_mb": int(table.loc[table["equal_ms"].idxmin(), "bucket_size_mb"]),
        "pipelined_best_mb": int(table.loc[table["pipelined_ms"].idxmin(), "bucket_size_mb"]),
        "all_at_once_ms": whole_ms,
        "backward_ms": backward_ms,
        "transfer_over_backward": whole_ms / backward_ms,
        **dict(table.set_index(table["bucket_size_mb"].astype(str) + " MB")[["measured_ms", *MODELS]]),
        "misses": bool((table["measured_ms"] > table[list(MODELS)].max(axis=1)).all()),
    }
