"""How far figures can be trusted: unstable times, the spread between repeats, clocks that a power limit lowered."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from pipeline.instruments.sampling.verdict import pooled_repeat_spread
from pipeline.report.section import listing
from pipeline.report.table_rows import known


def of_rows(rows: pd.DataFrame) -> dict[str, Any]:
    """Return what the rows of a stage, from `with_repeats`, say of themselves; nothing where they say nothing.

    times: how many medians of times there are; unstable: how many of them are; limit_pct: of their standard error.
    typical_pct: standard deviation between the medians of repeats; most_pct: the highest over the lowest of a figure;
    unstable_most_pct: that of the unstable figures, if any has repeats. Of whole steps alone in a stage that times
    these: a phase of microseconds, such as what is left of communication, may double and matter to nobody.
    capped: the figures at a clock that a power limit lowered; clock_mhz: the lowest such mean clock.
    full_clock_mhz: the highest mean clock of the other figures; None where there are none.
    """
    return {**_stability(rows), **_between_repeats(rows), **_power_capped(rows)}


def _stability(rows: pd.DataFrame) -> dict[str, float]:
    times = known(rows, "median_ms", "setting_unstable_rel_error")
    if times.empty:
        return {}
    limit_pct = 100 * float(times["setting_unstable_rel_error"].max())
    return {"times": len(times), "unstable": int((times["status"] == "unstable").sum()), "limit_pct": limit_pct}


def _between_repeats(rows: pd.DataFrame) -> dict[str, float]:
    if "medians_of_repeats_ms" not in rows:
        return {}
    rows = _whole_steps(rows)
    medians = rows.loc[rows["status"] == "ok", "medians_of_repeats_ms"].dropna()
    spread = pooled_repeat_spread(medians)
    if spread is None:
        return {}
    found = {"typical_pct": 100 * spread.log_std, "most_pct": _most_apart_pct(medians)}
    repeated = rows.loc[rows["status"] == "unstable", "samples_of_repeats"].dropna()
    unstable = [[float(np.median(samples)) for samples in repeats] for repeats in repeated if len(repeats) > 1]
    return found | ({"unstable_most_pct": _most_apart_pct(unstable)} if unstable else {})


def _whole_steps(rows: pd.DataFrame) -> pd.DataFrame:
    steps = rows[rows["phase"] == "train_step"] if "phase" in rows else rows
    return rows if steps.empty else steps


def _most_apart_pct(medians: Sequence[Sequence[float]]) -> float:
    return 100 * (max(max(each) / min(each) for each in medians) - 1)


def _power_capped(rows: pd.DataFrame) -> dict[str, float | None]:
    clocked = known(rows, "power_capped", "mean_sm_clock_mhz")
    if clocked.empty or not clocked["power_capped"].any():
        return {}
    is_capped = clocked["power_capped"].eq(True)
    lowered, others = clocked.loc[is_capped, "mean_sm_clock_mhz"], clocked.loc[~is_capped, "mean_sm_clock_mhz"]
    full = float(others.max()) if len(others) else None
    return {"capped": len(lowered), "clock_mhz": float(lowered.min()), "full_clock_mhz": full}


def capped_models(models: Sequence[Mapping[str, Any]]) -> str:
    """Name the steps of the first screen's table at a clock that a power limit lowered; nothing without that table."""
    kinds = {"eager": "power_capped", "tuned": "tuned_power_capped"}
    sizes = {kind: [model["size"] for model in models if model[column]] for kind, column in kinds.items()}
    told = "; ".join(f"{kind} {listing(found)}" for kind, found in sizes.items() if found)
    return (told or "none") if models else ""
