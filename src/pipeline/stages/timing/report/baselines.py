"""Others' timings beside ours, where size, context length, precision, pass and mode are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.report.section import counted
from pipeline.report.table_rows import ok
from pipeline.report.tables import fold, markdown, number_cells, significant
from pipeline.stages.timing.report.selection import PASSES, host

PRECISIONS = {"fp32": "fp32", "bf16_autocast": "bf16", "not_stated": "fp32"}
MODES = {"no": "eager", "yes": "compiled"}
SHORT_WARMUP_STEPS = 1
KEYS = ["size", "context_length", "precision", "mode", "phase"]


def beside_ours(rows: pd.DataFrame, context_length: int) -> pd.DataFrame:
    """Pair others' mean times with ours.

    Where the transcript of a source has no context length or precision, it is paired with ours at
    `context_length` or in fp32; `assumed` names what it lacks. Their forward_backward stands beside the sum of our two
    passes. Figures that a source repeats, took under a profiler or without warm-up are not compared.

    Returns KEYS, write_up, note, assumed, theirs_ms, ours_ms, its status and reason, and ratio (ours over theirs).
    """
    theirs = published.load("timing")
    theirs = theirs[
        (theirs["status"] == "ok")
        & (theirs["repeated"] != "yes")
        & (theirs["measured_by"] == "host clock")
        & ~(theirs["warmup_steps"] <= SHORT_WARMUP_STEPS)
    ]
    theirs = theirs.assign(
        size=theirs["model"],
        assumed=_left_out(theirs),
        context_length=theirs["context_length"].fillna(context_length).astype(int),
        precision=theirs["precision"].map(PRECISIONS),
        mode=theirs["compiled"].map(MODES),
        theirs_ms=theirs["mean_ms"],
    )
    columns = [*KEYS, "write_up", "note", "assumed", "theirs_ms"]
    paired = _ours(rows).merge(theirs[columns], on=KEYS)
    return paired.assign(ratio=paired["ours_ms"] / paired["theirs_ms"])


def _left_out(theirs: pd.DataFrame) -> pd.Series:
    context = theirs["context_length"].isna().map({True: "context", False: ""})
    precision = (theirs["precision"] == "not_stated").map({True: "precision", False: ""})
    return (context + " " + precision).str.strip().str.replace(" ", ", ")


def _ours(rows: pd.DataFrame) -> pd.DataFrame:
    warm = ok(host(rows[rows["warmup_steps"] == rows["warmup_steps"].max()]))
    ours = warm[[*KEYS, "mean_ms", "status", "reason"]].rename(columns={"mean_ms": "ours_ms"})
    both = ours[ours["phase"].isin(["forward", "backward"])].groupby(KEYS[:-1], sort=False)
    # Of "ok" and "unstable" the latter is the greater: a sum is unstable where a part of it is.
    sums = both.agg({"ours_ms": "sum", "status": "max"}).reset_index().assign(**{"phase": "forward_backward"})
    return pd.concat([ours, sums], ignore_index=True)


def summary_table(pairs: pd.DataFrame) -> str:
    """Write one line a source: how many figures compare, and our time over theirs."""
    lines = [
        {
            "source": write_up,
            "mode": mode,
            **published.ratio_columns(group["ratio"], "median", _ratio_cells(group)),
            "guessed for this comparison": " and ".join(sorted(set(group["assumed"]) - {""})) or "–",
        }
        for (write_up, mode), group in pairs.groupby(["write_up", "mode"], sort=True)
    ]
    return markdown(pd.DataFrame(lines))


def full_tables(pairs: pd.DataFrame) -> list[str]:
    """Write every pair, folded, one table a source and mode, with that source's doubts under it."""
    return [_full_table(*names, group) for names, group in pairs.groupby(["write_up", "mode"], sort=True)]


def _full_table(write_up: str, mode: str, pairs: pd.DataFrame) -> str:
    names = [*PASSES, "forward_backward"]
    pairs = pairs.sort_values("phase", key=lambda column: column.map(names.index), kind="stable")
    table = pd.DataFrame(
        {
            "phase": pairs["phase"].replace(
                {"forward_backward": "forward + backward (ours: sum)", "train_step": "train step"}
            ),
            "size": pairs["size"],
            "context length": pairs["context_length"].astype(str).mask(_is_assumed(pairs, "context"), "not given"),
            "precision": pairs["precision"].mask(_is_assumed(pairs, "precision"), "not given"),
            "theirs (ms)": pairs["theirs_ms"].map(significant),
            "ours (ms)": number_cells(pairs, "ours_ms"),
            "ours / theirs": _ratio_cells(pairs),
        }
    )
    doubts = published.doubts_list(pairs) or "No doubts noted."
    return fold(f"{write_up}, {mode}: {counted(len(pairs), 'figure')}", markdown(table), doubts)


def _ratio_cells(pairs: pd.DataFrame) -> pd.Series:
    return number_cells(pairs, "ratio", digits=2)


def _is_assumed(pairs: pd.DataFrame, what: str) -> pd.Series:
    return pairs["assumed"].str.contains(what)
