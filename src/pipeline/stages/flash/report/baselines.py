"""Others' FlashAttention times beside ours, where dtype, shape and phase are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.table_rows import ok
from pipeline.stages.flash.report.facts import leaderboard, one_head, ours

DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
IMPLS = {"triton": "triton", "pytorch": "eager"}
KEYS = ["dtype", "head_dim", "seq_len", "impl", "phase"]


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what, unit, theirs, ours, write_up and note of every time that a write-up gives and we measured too.

    Their PyTorch stands beside our eager. Their leaderboard times name no dtype and stand beside our fastest.
    """
    return pd.concat([_one_head(rows), _leaderboard(rows)], ignore_index=True)


def _one_head(rows: pd.DataFrame) -> pd.DataFrame:
    theirs = published.load("flash")
    theirs = theirs[theirs["status"] == "ok"].dropna(subset=["head_dim", "seq_len"])
    theirs = theirs.assign(dtype=theirs["dtype"].map(DTYPES), impl=theirs["impl"].map(IMPLS), theirs=theirs["ms"])
    paired = ok(one_head(rows))[[*KEYS, "median_ms"]].merge(theirs[[*KEYS, "theirs", "write_up", "note"]], on=KEYS)
    sizes = ", head_dim " + paired["head_dim"].astype(str) + ", length " + paired["seq_len"].astype(str)
    what = paired["phase"].str.replace("_", " + ") + ", " + paired["impl"] + ", " + paired["dtype"] + sizes
    return paired.assign(what=what, unit="ms", ours=paired["median_ms"])


def _leaderboard(rows: pd.DataFrame) -> pd.DataFrame:
    here = ok(leaderboard(rows))
    here = here[here["impl"] == ours(rows)]
    theirs = published.load("leaderboard")
    theirs = theirs[theirs["status"] == "ok"] if len(here) else theirs.head(0)
    what = "leaderboard's shape, tile size " + theirs["tile_size"].astype(str)
    return theirs.assign(what=what, unit="ms", theirs=theirs["ms"], ours=here["median_ms"].min())
