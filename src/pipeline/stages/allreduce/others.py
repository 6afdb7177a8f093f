"""Others' all-reduce times beside ours, where backend, ranks and size are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.rows import ok
from pipeline.report.section import counted
from pipeline.report.tables import fold, markdown, significant
from pipeline.stages.allreduce.selection import bursts, singles

# 1024 MB of 2^20 bytes beside 1 GB of 10^9: nearer than that no two write-ups are.
SIZE_TOLERANCE = 0.1
KEYS = ["backend", "world_size"]


def beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' mean times over all ranks with our single calls by the host clock, sizes within a tenth.

    Returns KEYS, size_mb (theirs), write_up, note, theirs_ms, single_ms, burst_ms and ratio (our single over theirs).
    """
    theirs = published.load("allreduce")
    theirs = theirs[(theirs["rank"] == "all") & theirs["ms"].notna()]
    theirs = theirs[[*KEYS, "size_mb", "write_up", "note", "ms"]].rename(columns={"ms": "theirs_ms"})
    ours = _times(singles(ok(rows), "host"), "single_ms").merge(_times(bursts(ok(rows)), "burst_ms"))
    paired = theirs.merge(ours, on=KEYS)
    near = (paired["size_bytes"] / (paired["size_mb"] * 1e6) - 1).abs() <= SIZE_TOLERANCE
    paired = paired[near]
    return paired.assign(ratio=paired["single_ms"] / paired["theirs_ms"])


def _times(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    return rows[[*KEYS, "size_bytes", "median_ms"]].rename(columns={"median_ms": name})


def summary_table(pairs: pd.DataFrame) -> str:
    """Write one line a source and backend: how many figures compare, and our time over theirs."""
    groups = pairs.groupby(["write_up", "backend"], sort=True)["ratio"]
    table = groups.agg(["size", "median", "min", "max"]).reset_index()
    for column in ("median", "min", "max"):
        table[column] = table[column].map(lambda value: significant(value, 2))
    table.columns = ["source", "backend", "figures compared", "ours / theirs, median", "lowest", "highest"]
    return markdown(table)


def full_tables(pairs: pd.DataFrame) -> list[str]:
    """Write every pair, folded, one table a source, with that source's doubts under it."""
    return [_full_table(write_up, group) for write_up, group in pairs.groupby("write_up", sort=True)]


def _full_table(write_up: str, pairs: pd.DataFrame) -> str:
    pairs = pairs.sort_values([*KEYS, "size_mb"], kind="stable")
    table = pd.DataFrame(
        {
            "backend": pairs["backend"],
            "ranks": pairs["world_size"],
            "size (MB)": pairs["size_mb"],
            "theirs (ms)": pairs["theirs_ms"].map(significant),
            "ours, single call (ms)": pairs["single_ms"].map(significant),
            "ours, in a burst (ms)": pairs["burst_ms"].map(significant),
            "single / theirs": pairs["ratio"].map(lambda value: significant(value, 2)),
        }
    )
    doubts = published.doubts_list(pairs) or "No doubts noted."
    return fold(f"{write_up}: {counted(len(pairs), 'figure')}", f"{markdown(table)}\n\n{doubts}")
