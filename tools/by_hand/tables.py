"""Tables of the times measured by hand, alone and beside those that the pipeline published."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

READ = ["change", "context", "median_ms", "samples_ms", "peak_bytes", "first_loss"]
EAGER = ["eager", "eager_again"]
Records = Sequence[Mapping[str, Any]]


def times(records: Records) -> pd.DataFrame:
    """Return one row per turn: times, memory, and the speed-up over the eager steps at its context."""
    rows = pd.DataFrame(records).reindex(columns=READ)
    eager_ms = rows[rows["change"] == "eager"].groupby("context")["median_ms"].mean()
    return rows.assign(
        min_ms=rows["samples_ms"].map(min, na_action="ignore"),
        max_ms=rows["samples_ms"].map(max, na_action="ignore"),
        peak_gb=rows["peak_bytes"] / 1e9,
        speed_up=rows["context"].map(eager_ms) / rows["median_ms"],
    )[["change", "context", "median_ms", "min_ms", "max_ms", "peak_gb", "speed_up", "first_loss"]]


def instead_of_checkpoints(records: Records) -> pd.DataFrame:
    """Return, by context, the speed-up of flash attention over the eager step with checkpointing."""
    by_change = times(records).groupby(["context", "change"])["median_ms"].mean().unstack()
    both = by_change.reindex(columns=["checkpointing", "flash"]).dropna()
    return both.assign(speed_up=both["checkpointing"] / both["flash"]).reset_index()


def beside(records: Records, path: Path, context: int, batch: int) -> pd.DataFrame:
    """Put medians and speed-ups beside those of a published table of levers, in bf16; repeats become their median."""
    theirs = pd.read_csv(path)
    asked = {"context_length": context, "setting_batch_size": batch, "precision": "bf16"}
    theirs = theirs[(theirs[list(asked)] == pd.Series(asked)).all(axis=1)].dropna(subset="median_ms")
    theirs_ms = theirs.groupby("levers", sort=False)["median_ms"].median()
    theirs_ms["eager"] = theirs_ms.reindex(EAGER).mean()
    ours = times(records)
    ours_ms = ours[ours["context"] == context].groupby("change", sort=False)["median_ms"].mean()
    both = pd.DataFrame({"by_hand_ms": ours_ms, "pipeline_ms": theirs_ms})
    both = both.loc[[change for change in ours_ms.index if change in theirs_ms.index]]
    speed_ups = both.reindex(EAGER[:1]).mean() / both
    both = both.join(speed_ups.set_axis(["by_hand_speed_up", "pipeline_speed_up"], axis="columns"))
    both["by_hand_over_pipeline"] = both["by_hand_speed_up"] / both["pipeline_speed_up"]
    return both.rename_axis("change").reset_index()


def written(table: pd.DataFrame) -> str:
    """Write a table; a dash where there is no value."""
    return str(table.to_string(index=False, na_rep="–", float_format="{:,.3f}".format))
