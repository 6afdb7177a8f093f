"""Predict the most that fp8 products can gain a step, from the product rates measured on this machine."""

import pandas as pd

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.sizes import SIZES
from pipeline.report.frame import with_values
from pipeline.stages.levers.cell import EAGER, OF_COMPILED, names

STEP = ["size", "context_length", "precision"]
# Dtypes of the products without and with the lever.
BF16, FP8 = "bf16", "fp8"


def predicted_ratios(rows: pd.DataFrame, ceilings: pd.DataFrame) -> pd.Series:
    """Return how many times as fast as written each step with fp8 products can be; NaN for other steps.

    This is the speedup of the same step without fp8, times the gain by formula if its products ran at the rate of the
    fastest fp8 product instead of the fastest bf16 one. NaN if one of these was not measured.
    """
    ratios = pd.Series(float("nan"), rows.index)
    rates = ceilings.dropna(subset=["dtype", "tflops_per_s"]).groupby("dtype")["tflops_per_s"].max()
    if not {BF16, FP8} <= {*rates.index}:
        return ratios
    timed = with_values(rows).set_index([*STEP, "levers"])["median_ms"]
    for place, row in rows.iterrows():
        rest = "+".join(name for name in names(row["levers"]) if name not in OF_COMPILED)
        without, written = (timed.get((*row[STEP], levers)) for levers in (rest, EAGER))
        if {*names(row["levers"])} & {*OF_COMPILED} and without is not None and written is not None:
            flops = linear_flops(SIZES[row["size"]], int(row["setting_batch_size"]), int(row["context_length"]))
            ratios[place] = written / without * predicted_gain(flops, without, rates[BF16], rates[FP8])
    return ratios
