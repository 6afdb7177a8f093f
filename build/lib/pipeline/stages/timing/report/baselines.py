"""Others' times beside ours, where size, context length, precision, phase and mode are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.table_rows import ok
from pipeline.stages.timing.report.steps import largest_context, main_precision, of_mode, warm

PRECISIONS = {"fp32": "fp32", "bf16_autocast": "bf16", "not_stated": "fp32"}
MODES = {"no": "eager", "yes": "compiled"}
MODE_WORDS = {"eager": "", "compiled": ", compiled"}
SHORT_WARMUP_STEPS = 1
KEYS = ["size", "context_length", "precision", "mode", "phase"]


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what, unit, theirs, ours, write_up and note of every mean time that a write-up gives and we measured too.

    Where a source has no context length, ours at our largest stands beside it; where it has no precision, ours in fp32.
    Figures that a source repeats, took under a profiler or without warm-up are left out.
    """
    theirs = published.load("timing")
    theirs = theirs[
        (theirs["status"] == "ok")
        & (theirs["repeated"] != "yes")
        & (theirs["measured_by"] == "host clock")
        & ~(theirs["warmup_steps"] <= SHORT_WARMUP_STEPS)
    ]
    if of_mode(warm(rows), "eager").empty:
        return pd.DataFrame()
    context_length = largest_context(rows, main_precision(rows))
    theirs = theirs.assign(
        size=theirs["model"],
        context_length=theirs["context_length"].fillna(context_length).astype(int),
        precision=theirs["precision"].map(PRECISIONS),
        mode=theirs["compiled"].map(MODES),
        theirs=theirs["mean_ms"],
    )
    paired = theirs[[*KEYS, "theirs", "write_up", "note"]].merge(_ours(rows), on=KEYS)
    words = paired["phase"].str.replace("_", " ") + ", " + paired["size"] + " " + paired["precision"]
    what = words + ", context " + paired["context_length"].astype(str) + paired["mode"].map(MODE_WORDS)
    return paired.assign(what=what, unit="ms")


def _ours(rows: pd.DataFrame) -> pd.DataFrame:
    mine = ok(warm(rows))
    mine = mine[[*KEYS, "mean_ms"]].rename(columns={"mean_ms": "ours"})
    both = mine[mine["phase"].isin(["forward", "backward"])].groupby(KEYS[:-1], sort=False)
    sums = both["ours"].sum().reset_index().assign(phase="forward_backward")
    return pd.concat([mine, sums], ignore_index=True)
