"""What others found with nsys, beside ours of the same model and context length, in fp32."""

import pandas as pd

from pipeline.report import published
from pipeline.report.markup import Markdown, code
from pipeline.report.tables import markdown, significant
from pipeline.stages.profile.cell import BACKWARD
from pipeline.stages.profile.kernel_names import short_name
from pipeline.stages.profile.report.findings import MATMUL
from pipeline.stages.profile.report.selection import kernels, shares
from pipeline.stages.profile.report.shown_names import shown_name

RANGES = {
    "forward": "inference",
    "backward": BACKWARD,
    "forward_backward": "forward_backward",
    "train_step": "train_step",
}
NOT_GIVEN = "not given"
# Two names stand in a line.
NAME_LENGTH = 50


def compared(rows: pd.DataFrame, attention: pd.DataFrame) -> dict[str, str]:
    """Write the tables of others' figures beside ours, and their doubts; empty where nothing of ours compares.

    attention: ours, as `findings.attention` gives it.
    """
    theirs = published.load("nsys")
    fp32 = rows[rows["precision"] == "fp32"]
    tables = {
        "kernels": _kernels(theirs, fp32),
        "matmul": _matmul_shares(theirs, fp32),
        "attention": _attention(theirs, attention[attention["precision"] == "fp32"]),
    }
    if not any((table["ours"] != "–").any() for table in tables.values()):
        return {}
    kernels = {"kernels": markdown(tables.pop("kernels"), written=["theirs", "ours"])}
    return (
        kernels | {name: markdown(table) for name, table in tables.items()} | {"doubts": published.doubts_list(theirs)}
    )


def _where(theirs: pd.DataFrame) -> pd.DataFrame:
    """Say what a source says of model and context, and the range, one line a row.

    All in one column: beside two names of kernels there is no room for more.
    """
    named = theirs[["model", "context_length", "scope"]].to_dict("records")
    return pd.DataFrame(
        {"source": theirs["write_up"], "model, context, range": [f"{_setting(row)}, {_range(row)}" for row in named]}
    )


def _setting(row: dict) -> str:
    known = [row["model"]] if isinstance(row["model"], str) else []
    known += [] if pd.isna(row["context_length"]) else [f"{row['context_length']:.0f}"]
    return ", ".join(known) or NOT_GIVEN


def _range(row: dict) -> str:
    return {"forward_backward": "forward + backward", "train_step": "train step"}.get(row["scope"], row["scope"])


def _same(ours: pd.DataFrame, row: dict) -> pd.DataFrame:
    """Keep what is of the same model, context and range; nothing where the source does not give them."""
    here = (ours["size"] == row["model"]) & (ours["context_length"] == row["context_length"])
    return ours[here & (ours["range"] == RANGES[row["scope"]])]


def _kernels(theirs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Set the kernel that a source names first, for each range, beside ours."""
    named = theirs[theirs["kind"] == "kernel"]
    named = named.drop_duplicates(["source", "model", "context_length", "scope"])
    ours = pd.concat([kernels(rows, path) for path in RANGES.values()])
    ours = ours[ours["rank"] == 1]
    return _where(named).assign(
        theirs=[_kernel_words(row["name"], row["count"], row["share_pct"]) for row in named.to_dict("records")],
        ours=[_our_kernel(_same(ours, row)) for row in named.to_dict("records")],
    )


def _our_kernel(found: pd.DataFrame) -> str:
    if found.empty:
        return "–"
    first = found.iloc[0]
    return _kernel_words(first["kernel"], first["count"], first["share_pct"])


def _kernel_words(name: str, count: float, share_pct: float) -> str:
    short = shown_name(short_name(name))
    words = [code(short if len(short) <= NAME_LENGTH else f"{short[:NAME_LENGTH]}…")]
    words += [] if pd.isna(count) else [f"{count:.0f} calls"]
    words += [] if pd.isna(share_pct) else [f"{significant(share_pct, 3)}%"]
    return Markdown(", ").join(words)


def _matmul_shares(theirs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    named = theirs[theirs["kind"] == "matmul_share"]
    found = [_same(shares(rows), row) for row in named.to_dict("records")]
    return _where(named).assign(
        theirs=[f"{share:.0f}%" for share in named["share_pct"]],
        ours=[f"{100 * ours[MATMUL].iloc[0]:.0f}%" if len(ours) else "–" for ours in found],
    )


def _attention(theirs: pd.DataFrame, ours: pd.DataFrame) -> pd.DataFrame:
    """Set the time of the products inside attention over that of softmax beside ours: a line a source."""
    parts = theirs[theirs["kind"] == "attention_part"].assign(
        product=lambda found: found["part"].isin(["qk_scores", "pv_matmul", "attention_matmuls"])
    )
    lines, first = [], []
    for _, group in parts.groupby("source", sort=False):
        softmax_ms = group.loc[group["part"] == "softmax", "total_ms"].sum()
        words = " + ".join(group.loc[group["product"], "part"].str.replace("_", " "))
        ratio = group.loc[group["product"], "total_ms"].sum() / softmax_ms
        lines.append(f"{words}: {significant(ratio, 2)} × softmax")
        first.append(group.iloc[[0]])
    where = pd.concat(first)
    matching = [
        ours[(ours["size"] == row["model"]) & (ours["context_length"] == row["context_length"])]
        for row in where.to_dict("records")
    ]
    ratios = [f"{significant(found['time_ratio'].iloc[0], 2)} × softmax" if len(found) else "–" for found in matching]
    return _where(where).assign(theirs=lines, ours=ratios)
