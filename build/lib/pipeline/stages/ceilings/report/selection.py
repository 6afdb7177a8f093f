"""Which rows of the ceilings' tables answer which question."""

import pandas as pd

from pipeline.report.table_rows import in_order, known, ok
from pipeline.report.tables import significant
from pipeline.stages.ceilings.cell import DTYPES

# Bandwidths in reading order, as figure and table name them.
BANDWIDTHS = {
    "copy": "copies in memory",
    "reduction": "sums over memory",
    "l2_copy": "copies in the L2 cache",
    "to_device": "host to GPU",
    "to_host": "GPU to host",
    "to_peer": "GPU to GPU",
}
FLOP_RATE, BYTE_RATE = "tflops_per_s", "gb_per_s"
TRAINING_DTYPES = ("bf16", "fp32")
# The share of the best rate from which on a size is large enough.
NEAR = 0.9


def products(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the products."""
    return rows[rows["what"] == "matmul"]


def best_products(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the fastest product of each data type, or why there is none, in the order of DTYPES."""
    best = products(rows).sort_values("tflops_per_s", ascending=False, kind="stable").drop_duplicates("dtype")
    return best.sort_values("dtype", key=lambda dtypes: dtypes.map(DTYPES.index))


def bandwidths(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what moves data, in the order of BANDWIDTHS."""
    found = rows[rows["kind"].isin(list(BANDWIDTHS))]
    return in_order(found, ["kind"], {"kind": tuple(BANDWIDTHS)})


def highest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest product of each data type and what moves data, in reading order, without what was skipped.

    With its words in `ceiling`, the column of its rate in `quantity`, and the rate in `rate`.
    """
    rows = rows[rows["status"] != "skipped"]
    best, moved = best_products(rows), bandwidths(rows)
    found = [
        best.assign(ceiling=best["dtype"] + " product", quantity=FLOP_RATE, rate=best[FLOP_RATE]),
        moved.assign(ceiling=moved["kind"].map(BANDWIDTHS), quantity=BYTE_RATE, rate=moved[BYTE_RATE]),
    ]
    return pd.concat(found, ignore_index=True)


def written(rate: float, quantity: str) -> str:
    """Write a rate with its unit: 742 TFLOP/s, 98.2 GFLOP/s, 4.20 TB/s or 55.1 GB/s."""
    if quantity == FLOP_RATE:
        return f"{significant(1e3 * rate)} GFLOP/s" if rate < 1 else f"{significant(rate)} TFLOP/s"
    return f"{significant(rate / 1e3)} TB/s" if rate >= 1000 else f"{significant(rate)} GB/s"


def promised(row: pd.Series, quantity: str) -> float | None:
    """Return the rate that the GPU's data sheet promises; None where it promises none."""
    rate = row[f"datasheet_{quantity}"]
    return None if pd.isna(rate) else float(rate)


def share(row: pd.Series, quantity: str) -> float | None:
    """Return a rate's share of what the data sheet promises; None where it promises none."""
    rate = promised(row, quantity)
    return None if rate is None else float(row[quantity] / rate)


def best_trained(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fastest product of a data type that models train in; None where none was measured."""
    best = ok(best_products(rows))
    best = best[best["dtype"].isin(TRAINING_DTYPES)]
    return best.loc[best["tflops_per_s"].idxmax()] if len(best) else None


def alike(rows: pd.DataFrame, product: pd.Series) -> pd.DataFrame:
    """Return the products of a product's data type, the smallest matrices first, with their share of its rate."""
    found = ok(products(rows)[products(rows)["dtype"] == product["dtype"]]).sort_values("side")
    return found.assign(share=found["tflops_per_s"] / product["tflops_per_s"])


def capped(rows: pd.DataFrame, product: pd.Series) -> pd.Series | None:
    """Return the largest product of a product's data type if a power limit made it slower; None otherwise."""
    clocked = known(alike(rows, product), "power_capped", "mean_sm_clock_mhz")
    if product.name not in clocked.index:
        return None
    largest = clocked.iloc[-1]
    return largest if largest["power_capped"] and largest["share"] < 1 else None
