"""Others' FlashAttention times beside ours, where dtype, shape and pass are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.markup import paragraphs
from pipeline.report.section import counted
from pipeline.report.table_rows import ok
from pipeline.report.tables import fold, markdown, markdown_folded_if_long, significant
from pipeline.stages.flash.report.selection import leaderboard, main_grid

DTYPES = {"bfloat16": "bf16", "float32": "fp32"}
IMPLS = {"triton": "triton", "pytorch": "eager"}
KEYS = ["dtype", "head_dim", "seq_len", "impl", "phase"]


def beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' times at batch 1 with ours of one causal head, their PyTorch with our eager.

    Returns KEYS, write_up, note, theirs_ms, ours_ms and ratio (ours over theirs).
    """
    theirs = published.load("flash")
    theirs = theirs[theirs["status"] == "ok"]
    theirs = theirs.assign(
        dtype=theirs["dtype"].map(DTYPES), impl=theirs["impl"].map(IMPLS), theirs_ms=theirs["ms"]
    ).dropna(subset=["head_dim", "seq_len"])
    measured = ok(main_grid(rows))[[*KEYS, "median_ms"]].rename(columns={"median_ms": "ours_ms"})
    paired = measured.merge(theirs[[*KEYS, "write_up", "note", "theirs_ms"]], on=KEYS)
    return paired.assign(ratio=paired["ours_ms"] / paired["theirs_ms"])


def summary_table(pairs: pd.DataFrame) -> str:
    """Write one line a source, dtype, implementation and pass: how many compare, and our time over theirs."""
    keys = ["write_up", "dtype", "impl", "phase"]
    lines = [
        {
            "source": write_up,
            "dtype": dtype,
            "implementation": impl,
            "pass": part.replace("_", " + "),
            **published.ratio_columns(group["ratio"], "geometric mean"),
        }
        for (write_up, dtype, impl, part), group in pairs.groupby(keys, sort=True)
    ]
    return markdown_folded_if_long(pd.DataFrame(lines), f"Ours over theirs, {len(lines)} geometric means")


def full_tables(pairs: pd.DataFrame) -> list[str]:
    """Write every pair, folded, one table a source and dtype, with that source's doubts under it."""
    groups = pairs.groupby(["write_up", "dtype"], sort=True)
    return [_full_table(write_up, dtype, group) for (write_up, dtype), group in groups]


def _full_table(write_up: str, dtype: str, pairs: pd.DataFrame) -> str:
    pairs = pairs.sort_values(["impl", "phase", "head_dim", "seq_len"], ascending=[False, True, True, True])
    table = pd.DataFrame(
        {
            "implementation": pairs["impl"],
            "pass": pairs["phase"].str.replace("_", " + "),
            "head_dim": pairs["head_dim"],
            "sequence length": pairs["seq_len"],
            "theirs (ms)": pairs["theirs_ms"].map(significant),
            "ours (ms)": pairs["ours_ms"].map(significant),
            "ours / theirs": pairs["ratio"].map(lambda value: significant(value, 2)),
        }
    )
    doubts = published.doubts_list(pairs) or "No doubts noted."
    return fold(f"{write_up}, {dtype}: {counted(len(pairs), 'figure')}", markdown(table), doubts)


def leaderboard_table(rows: pd.DataFrame) -> str:
    """Write others' leaderboard times, with their doubts; empty where we measured nothing at its shape."""
    if ok(leaderboard(rows)).empty:
        return ""
    theirs = published.load("leaderboard")
    table = pd.DataFrame(
        {
            "source": theirs["write_up"],
            "tile size": theirs["tile_size"],
            "theirs (ms)": theirs["ms"].map(significant).where(theirs["status"] == "ok", "failed"),
        }
    )
    return paragraphs(markdown(table), published.doubts_list(theirs))
