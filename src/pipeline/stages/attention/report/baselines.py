"""Others' timings of plain attention beside ours, where shape and mode are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.section import counted
from pipeline.report.table_rows import ok
from pipeline.report.tables import fold, markdown, significant
from pipeline.stages.attention.cell import PHASES
from pipeline.stages.attention.report.selection import host

MODES = {"no": "eager", "yes": "compiled"}
KEYS = ["batch_size", "head_dim", "seq_len", "mode", "phase"]


def beside_ours(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' mean times of a pass with ours of the same batch, head_dim, length and mode.

    Returns KEYS, write_up, section, note, theirs_ms, ours_ms and ratio (ours over theirs).
    """
    theirs = _long(published.load("attention"))
    ours = ok(host(rows)).rename(columns={"setting_batch_size": "batch_size", "mean_ms": "ours_ms"})[[*KEYS, "ours_ms"]]
    paired = ours.merge(theirs[theirs["theirs_ms"].notna()], on=KEYS)
    return paired.assign(ratio=paired["ours_ms"] / paired["theirs_ms"])


def ran_out(rows: pd.DataFrame) -> list[dict]:
    """List who ran out of memory at a length that is in our grid, and whether ours did there too."""
    theirs = published.load("attention").assign(mode=lambda table: table["compiled"].map(MODES))
    theirs = theirs[(theirs["status"] == "oom") & theirs["seq_len"].isin(rows["seq_len"])]
    found = []
    for (write_up, mode), group in theirs.groupby(["write_up", "mode"]):
        shortest = int(group["seq_len"].min())
        here = host(rows)[(host(rows)["seq_len"] == shortest) & (host(rows)["mode"] == mode)]
        found.append(
            {
                "write_up": write_up,
                "mode": mode,
                "seq_len": shortest,
                "ours_too": bool((here["status"] == "oom").any()),
                "ours_measured": bool(len(ok(here))),
            }
        )
    return found


def _long(theirs: pd.DataFrame) -> pd.DataFrame:
    """Give each pass a line of its own."""
    theirs = theirs.assign(mode=theirs["compiled"].map(MODES))
    columns = [*KEYS[:-1], "write_up", "section", "note"]
    lines = [theirs[columns].assign(phase=name, theirs_ms=theirs[f"{name}_ms"]) for name in PHASES]
    return pd.concat(lines, ignore_index=True)


def summary_table(pairs: pd.DataFrame) -> str:
    """Write one line a source, mode and pass: how many figures compare, and our time over theirs."""
    lines = [
        {
            "source": write_up,
            "mode": mode,
            "pass": name,
            **published.ratio_columns(group["ratio"], "geometric mean"),
        }
        for (write_up, mode, name), group in pairs.groupby(["write_up", "mode", "phase"], sort=True)
    ]
    return markdown(pd.DataFrame(lines))


def full_tables(pairs: pd.DataFrame) -> list[str]:
    """Write every pair, folded, one table a source, with that source's doubts under it."""
    return [_full_table(write_up, group) for write_up, group in pairs.groupby("write_up", sort=True)]


def _full_table(write_up: str, pairs: pd.DataFrame) -> str:
    pairs = pairs.sort_values(["mode", "phase", "head_dim", "seq_len"], ascending=[False, False, True, True])
    table = pd.DataFrame(
        {
            "mode": pairs["mode"],
            "pass": pairs["phase"],
            "head_dim": pairs["head_dim"],
            "sequence length": pairs["seq_len"],
            "their section": pairs["section"],
            "theirs (ms)": pairs["theirs_ms"].map(significant),
            "ours (ms)": pairs["ours_ms"].map(significant),
            "ours / theirs": pairs["ratio"].map(lambda value: significant(value, 2)),
        }
    )
    doubts = published.doubts_list(pairs) or "No doubts noted."
    return fold(f"{write_up}: {counted(len(pairs), 'figure')}", markdown(table), doubts)
