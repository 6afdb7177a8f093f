"""What the first screen's models reach with the best optimizations, from the rows of the stage levers."""

import numpy as np
import pandas as pd

EAGER = "eager"
# Of these a few steps do not show how they train in the long run; and eager's second turn is no lever.
NOT_ADVISED = "bf16_weights|bf16_moments|muon|fp8|eager_again"
SAME = ["size", "context_length", "batch_size", "setting_vocab_size"]
FIGURES = ["tokens_per_s", "mfu_pct", "gain", "peak_bytes"]
TOLD = ["levers", *FIGURES, "power_capped"]


def tuned_steps(steps: pd.DataFrame, levers: pd.DataFrame) -> pd.DataFrame:
    """Return TOLD of the fastest stable combination for each row of `steps`, at the same batch.

    levers: rows of the stage levers, which are in bf16. A step has None and NaN unless it is in bf16, where none was
    measured and where eager was fastest. gain: times as fast as the eager step of levers itself, NaN where that is
    unstable. is_wrong: some combination, and none that is faster than eager was right.
    """
    nothing = pd.DataFrame(
        {**dict.fromkeys(TOLD), **dict.fromkeys(FIGURES, np.nan), "is_wrong": False},
        index=steps.index,
    )
    if levers.empty or steps["precision"].iloc[0] != "bf16":
        return nothing
    levers = levers.rename(columns={"setting_batch_size": "batch_size"})
    advised = levers[~levers["levers"].str.contains(NOT_ADVISED)]
    stable = advised[advised["status"] == "ok"]
    of_cell = [*SAME, "combinations"]  # a gain is of two rows of one cell
    eager_ms = stable[stable["levers"] == EAGER].set_index(of_cell)["median_ms"].rename("eager_ms")
    gained = stable[stable["levers"] != EAGER].join(eager_ms, on=of_cell)
    gained = gained.assign(gain=gained["eager_ms"] / gained["median_ms"])
    gained = gained[~(gained["gain"] <= 1)]
    faster = gained.loc[gained.groupby(SAME)["median_ms"].idxmin()].reindex(columns=[*SAME, *TOLD])
    joined = steps[SAME].merge(faster, on=SAME, how="left").set_index(steps.index)
    wrong = pd.MultiIndex.from_frame(advised.loc[advised["status"] == "wrong", SAME])
    is_wrong = pd.MultiIndex.from_frame(steps[SAME]).isin(wrong) & joined["levers"].isna()
    return joined.assign(is_wrong=is_wrong)[list(nothing)]
