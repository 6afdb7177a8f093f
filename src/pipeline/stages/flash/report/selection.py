"""Which rows of the flash tables answer which question."""

import pandas as pd

from pipeline.report.table_rows import divide, in_order, ok
from pipeline.stages.flash.cell import DTYPES, OURS, PEERS, PHASES

# Ours, then the fastest of the others first.
IMPLS = ("triton", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa", "flex", "compiled_eager", "eager", "tiled")
ORDERS = {"dtype": DTYPES, "impl": IMPLS, "phase": PHASES}
PROBLEM = ["dtype", "is_causal", "batch_size", "num_heads", "head_dim", "seq_len"]

# What they are, for readers.
IMPL_WORDS = {
    "triton": "FlashAttention-2 in Triton",
    "sdpa_cudnn": "SDPA by cuDNN",
    "sdpa_flash": "SDPA by FlashAttention-2",
    "sdpa_efficient": "SDPA by its memory-efficient kernel",
    "sdpa": "SDPA, torch's own choice",
    "flex": "FlexAttention, compiled, with a block mask where causal",
    "compiled_eager": "the plain formula, compiled",
    "eager": "the plain formula",
    "tiled": "FlashAttention-2 in PyTorch operations",
}
# Who to beat beside the best of all: FlashAttention-2 itself, or in fp32, which it cannot do, what is as exact as ours.
RIVALS = ("sdpa_flash", "sdpa_efficient", "sdpa")

# From here on the device, not the launch, should decide; below it a lone call's latency does.
LONG = 1024
# The assignment's leaderboard: 16 heads of 64, causal.
LEADERBOARD = {"batch_size": 1, "num_heads": 16, "seq_len": 16384, "head_dim": 64, "is_causal": True}


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort into reading order, single heads before several."""
    return in_order(
        rows, ["dtype", "num_heads", "batch_size", "is_causal", "head_dim", "seq_len", "impl", "phase"], ORDERS
    )


def main_grid(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the assignment's grid: batch 1, one head, causal."""
    return rows[_is_main(rows)]


def other_shapes(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep what is not of the assignment's grid."""
    return rows[~_is_main(rows)]


def _is_main(rows: pd.DataFrame) -> pd.Series:
    return (rows["batch_size"] == 1) & (rows["num_heads"] == 1) & rows["is_causal"]


def leaderboard(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the shape of the assignment's leaderboard."""
    found = pd.Series(True, index=rows.index)
    for axis, value in LEADERBOARD.items():
        found &= rows[axis] == value
    return rows[found]


def ours(rows: pd.DataFrame) -> str | None:
    """Name our implementation to compare: Triton where it has figures, else the tiled one; None without either."""
    measured = set(ok(rows)["impl"])
    return next((name for name in OURS if name in measured), None)


def main_head_dim(rows: pd.DataFrame) -> int:
    """Choose the head_dim to show alone: 64, else the largest, if it has figures or none has."""
    found = set(ok(rows)["head_dim"]) or set(rows["head_dim"])
    return 64 if 64 in found else int(max(found))


def named(head_dim: int) -> str:
    """Name a head_dim in legends and sentences."""
    return f"head_dim {head_dim}"


def of(rows: pd.DataFrame, impl: str) -> pd.DataFrame:
    """Keep one implementation."""
    return rows[rows["impl"] == impl]


def rival(rows: pd.DataFrame) -> str | None:
    """Name the first of RIVALS that has figures; None without any."""
    return next((name for name in RIVALS if len(ok(of(rows, name)))), None)


def best_peer(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep, of each problem and pass, the fastest of torch's implementations: those that have a figure."""
    peers = ok(rows)[ok(rows)["impl"].isin(PEERS)]
    return peers.loc[peers.groupby([*PROBLEM, "phase"])["median_ms"].idxmin()] if len(peers) else peers


def speedups(rows: pd.DataFrame, mine: str, against: str) -> pd.DataFrame:
    """Divide another implementation's times, or with `best` the fastest peer's, by mine; above one, mine is faster.

    Status and reason are those of whichever has no figure.
    """
    other = best_peer(rows) if against == "best" else of(rows, against)
    return in_order(divide(other, of(rows, mine), [*PROBLEM, "phase"]), [*PROBLEM, "phase"], ORDERS)
