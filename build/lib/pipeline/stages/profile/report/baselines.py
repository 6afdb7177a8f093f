"""What others found with nsys, beside ours of the same model and context length, in fp32."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.profile.cell import BACKWARD
from pipeline.stages.profile.report.facts import MATMUL, captures

RANGES = {
    "forward": "inference",
    "backward": BACKWARD,
    "forward_backward": "forward_backward",
    "train_step": "train_step",
}
PRODUCTS = ("qk_scores", "pv_matmul", "attention_matmuls")


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' share of matrix products, and time of attention's products over softmax, with ours.

    Returns what, unit, theirs, ours, write_up and note, one row per pair.
    """
    theirs = published.load("nsys")
    named = theirs[theirs["model"].notna() & theirs["context_length"].notna()]
    ours = {
        (one.cell.size, one.cell.context_length): one
        for one in captures(rows)
        if one.cell.precision == "fp32" and one.cell.profiler == "auto"
    }
    found = []
    for (_, size, context), group in named.groupby(["source", "model", "context_length"], sort=False):
        one = ours.get((size, int(context)))
        if one is None:
            continue
        setting = f"{size}, fp32, context {context:.0f}"
        for at, share in group[group["kind"] == "matmul_share"].iterrows():
            path = RANGES[share["scope"]]
            if path in one.work_ms.index:
                what = f"matrix products, share of kernel time, {share['scope'].replace('_', ' ')}, {setting}"
                found.append([what, "%", share["share_pct"], 100 * one.share(path, MATMUL), *_source(group.loc[[at]])])
        parts = group[group["kind"] == "attention_part"]
        times_ms = parts.groupby("part")["total_ms"].sum()
        if "softmax" in times_ms and "inference" in one.attention.index:
            ratio = times_ms[times_ms.index.isin(PRODUCTS)].sum() / times_ms["softmax"]
            what = f"attention's products over softmax, forward, {setting}"
            found.append([what, "×", ratio, 1 / one.attention.loc["inference", "time_ratio"], *_source(parts)])
    return pd.DataFrame(found, columns=["what", "unit", "theirs", "ours", "write_up", "note"])


def _source(theirs: pd.DataFrame) -> tuple[str, str]:
    """Return the write-up and the notes of these rows of one source."""
    return theirs["write_up"].iloc[0], "; ".join(theirs["note"].dropna().unique())
