"""Things measured side by side in a cell: names for cells, and one thing's time held against another's."""

from collections.abc import Sequence

import pandas as pd

from pipeline.report.section import compare_ratio


def cell_names(rows: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Name each row's cell by the first axis and whichever others vary: `bf16`, or `bf16, xl, 4 ranks`."""
    telling = [axis for axis in axes if axis == axes[0] or rows[axis].nunique() > 1]
    values = rows[telling].astype(str)
    if "world_size" in telling:
        values["world_size"] += " ranks"
    return list(values.agg(", ".join, axis=1))


def against(whole: pd.DataFrame, name: str, other: str, tolerance: float) -> dict:
    """Hold the time of one thing against another's, from a table with a row a name.

    `whole` has median_ms, q1_ms and q3_ms. Returns word (`faster than`, ... as `compare_ratio` gives it), ratio (the
    other's time over its own), beyond (its own over the other's, minus one), own_ms, other_ms, name and other; empty
    where one of the two is missing.
    """
    if not {name, other} <= set(whole.index):
        return {}
    own, others = whole.loc[name], whole.loc[other]
    ratio = others["median_ms"] / own["median_ms"]
    low, high = others["q1_ms"] / own["q3_ms"], others["q3_ms"] / own["q1_ms"]
    return {
        "word": compare_ratio(ratio, low, high, tolerance),
        "ratio": ratio,
        "beyond": own["median_ms"] / others["median_ms"] - 1,
        "own_ms": own["median_ms"],
        "other_ms": others["median_ms"],
        "name": name,
        "other": other,
    }


def training_setting(rows: pd.DataFrame) -> dict:
    """Say what a stage that trains on several ranks measured, where and how often, from its rows with figures."""
    timed = rows[rows["n"].notna()]
    return {
        "machines": list(rows["machine"].unique()),
        "torch": list(rows["torch"].unique()),
        "backends": list(rows["backend"].dropna().unique()),
        "sizes": list(rows["size"].unique()),
        "world_sizes": sorted(rows["world_size"].unique()),
        "precisions": list(rows["precision"].unique()),
        "batch_sizes": sorted(rows["setting_batch_size_per_rank"].unique()),
        "contexts": sorted(rows["setting_context_length"].unique()),
        "warmup_steps": int(rows["setting_warmup_steps"].max()),
        "fewest_steps": int(timed["n"].min()),
        "most_steps": int(timed["n"].max()),
        "on_gpus": bool((rows["clock"] == "cuda_events").any()),
    }
