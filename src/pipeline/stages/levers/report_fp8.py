"""What fp8 products can gain a step at most, by the ceilings of products measured on this machine."""

import pandas as pd

from pipeline.formulas.faster_products import linear_flops, predicted_gain
from pipeline.formulas.sizes import SIZES
from pipeline.report.frame import with_values
from pipeline.stages.levers.cell import EAGER, OF_COMPILED, names

STEP = ["size", "context_length", "precision"]
# Of the products, without the lever and with it.
BF16, FP8 = "bf16", "fp8"


def predicted_ratios(rows: pd.DataFrame, ceilings: pd.DataFrame) -> pd.Series:
    """Return how many times as fast as written each step with fp8 products can be; NaN for other steps.

    The same step without fp8 beside the one as written, times what its products gain by formula where they run at the
    rate of the fastest product in fp8 in place of that in bf16. NaN where one of these was not measured.
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
