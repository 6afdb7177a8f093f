"""One peak per precision: where no data sheet has it, every process measures its own, and some do so on a slow host."""

import pandas as pd


def with_one_peak(rows: pd.DataFrame) -> pd.DataFrame:
    """Hold the rates of all rows against the highest peak of their precision that any of them has.

    Changes mfu_pct and peak_tflops_per_s of a stage's rows; those of a data sheet stay as they are. Without that the
    faster of two steps could have the lower MFU.
    """
    if not {"model_tflops_per_s", "mfu_pct"} <= {*rows}:
        return rows
    precisions = rows["precision"] if "precision" in rows else pd.Series("", index=rows.index)
    # Not every stage writes its peak down.
    peaks = (100 * rows["model_tflops_per_s"] / rows["mfu_pct"]).groupby(precisions).transform("max")
    one = {"mfu_pct": 100 * rows["model_tflops_per_s"] / peaks}
    if "peak_tflops_per_s" in rows:
        one["peak_tflops_per_s"] = rows["peak_tflops_per_s"].groupby(precisions).transform("max")
    return rows.assign(**one)
