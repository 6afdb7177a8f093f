"""Others' all-reduce times beside ours, where backend, ranks and size are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.section import counted
from pipeline.report.table_rows import ok
from pipeline.report.tables import fold, markdown, number_cells, significant
from pipeline.stages.allreduce.report.selection import bursts, singles

# 1024 MB of 2^20 bytes beside 1 GB of 10^9: nearer than that no two write-ups are.
SIZE_TOLERANCE = 0.1
KEYS = ["backend", "world_size"]


def beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' mean times over all ranks with our single calls by the host clock, sizes within a tenth.

    Ours are means too. Returns KEYS, size_mb (theirs), write_up, note, theirs_ms, single_ms and burst_ms with their
    status and reason (single_status, ...), and ratio (our single over theirs).
    """
    theirs = published.load("allreduce")
    theirs = theirs[(theirs["rank"] == "all") & theirs["ms"].notna()]
    theirs = theirs[[*KEYS, "size_mb", "write_up", "note", "ms"]].rename(columns={"ms": "theirs_ms"})
    ours = _times(singles(ok(rows), "host"), "single").merge(_times(bursts(ok(rows)), "burst"))
    paired = theirs.merge(ours, on=KEYS)
    near = (paired["size_bytes"] / (paired["size_mb"] * 1e6) - 1).abs() <= SIZE_TOLERANCE
    paired = paired[near]
    return paired.assign(ratio=paired["single_ms"] / paired["theirs_ms"])


def _times(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    columns = {"mean_ms": f"{name}_ms", "status": f"{name}_status", "reason": f"{name}_reason"}
    return rows[[*KEYS, "size_bytes", *columns]].rename(columns=columns)


def _cells(pairs: pd.DataFrame, column: str, way: str, digits: int = 3) -> pd.Series:
    """Write numbers that rest on our times by one way of timing; say so beside those that are unstable."""
    status = {f"{way}_status": "status", f"{way}_reason": "reason"}
    return number_cells(pairs.rename(columns=status), column, digits)


def _ratio_cells(pairs: pd.DataFrame) -> pd.Series:
    return _cells(pairs, "ratio", "single", digits=2)


def summary_table(pairs: pd.DataFrame) -> str:
    """Write one line a source and backend: how many figures compare, and our time over theirs."""
    lines = [
        {
            "source": write_up,
            "backend": backend,
            **published.ratio_columns(group["ratio"], "median", _ratio_cells(group)),
        }
        for (write_up, backend), group in pairs.groupby(["write_up", "backend"], sort=True)
    ]
    return markdown(pd.DataFrame(lines))


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
            "ours, single call (ms)": _cells(pairs, "single_ms", "single"),
            "ours, in a burst (ms)": _cells(pairs, "burst_ms", "burst"),
            "single / theirs": _ratio_cells(pairs),
        }
    )
    doubts = published.doubts_list(pairs) or "No doubts noted."
    return fold(f"{write_up}: {counted(len(pairs), 'figure')}", markdown(table), doubts)
