"""How far a stage's figures can be trusted: the spread between repeats, and clocks that a power limit lowered."""

from typing import Any

import numpy as np
import pandas as pd

from pipeline.instruments.sampling.verdict import pooled_repeat_spread


def of_rows(rows: pd.DataFrame) -> dict[str, Any]:
    """Return what the rows of a stage, from `with_repeats`, say of themselves; nothing where they say nothing.

    typical_pct: standard deviation between the medians of repeats; most_pct: the highest over the lowest of a figure.
    capped: the figures that were measured at a clock below the power limit's; clock_mhz: the lowest such mean clock.
    """
    return {**_between_repeats(rows), **_power_capped(rows)}


def _between_repeats(rows: pd.DataFrame) -> dict[str, float]:
    if "samples_of_repeats" not in rows:
        return {}
    stable = rows.loc[rows["status"] == "ok", "samples_of_repeats"].dropna()
    medians = [[float(np.median(samples)) for samples in repeats] for repeats in stable if len(repeats) > 1]
    spread = pooled_repeat_spread(medians)
    if spread is None:
        return {}
    most = max(max(each) / min(each) for each in medians)
    return {"typical_pct": 100 * spread.log_std, "most_pct": 100 * (most - 1)}


def _power_capped(rows: pd.DataFrame) -> dict[str, float]:
    capped = rows[rows["power_capped"].eq(True)] if "power_capped" in rows else rows.head(0)
    return {"capped": len(capped), "clock_mhz": float(capped["mean_sm_clock_mhz"].min())} if len(capped) else {}
