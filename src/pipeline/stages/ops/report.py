"""The ops section: what stands between the matrix products, each implementation beside the fastest other."""

from collections.abc import Mapping

import pandas as pd

from pipeline.formulas.operations import WHOLE
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import intervals, number, percent, significant, text
from pipeline.report.frame import in_order, with_figures
from pipeline.report.section import Compared, Section, say
from pipeline.report.table import Columns, Table, filled
from pipeline.report.versus import versus
from pipeline.stages.ops.cell import IMPLS
from pipeline.subjects.naming import OPERATIONS

PROBLEM = ["op", "dtype", "size", "batch_size", "context_length", "vocab_size"]
WORDS = {"ours": "ours", "eager": "eager", "compile": "compiled", "liger": "Liger", "fused": "torch's fused"}
OP_WORDS = {
    "rms_norm": "RMSNorm with the sum before it",
    "rotary": "rotary positions",
    "swiglu": "SwiGLU",
    "linear_cross_entropy": "head and loss",
    "adamw": "AdamW of a block",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ops stage."""
    rows = in_order(rows, ["size", "dtype", "op", "impl"], {"op": OPERATIONS, "impl": IMPLS})
    rows = rows.assign(
        what=rows["op"].map(OP_WORDS),
        problem=[f"{row['size']}, {row['dtype']}: {OP_WORDS[row['op']]}" for _, row in rows.iterrows()],
        who=rows["impl"].map(WORDS),
    )
    whole = rows[rows["phase"] == WHOLE]
    timed = with_figures(whole if len(with_figures(whole)) else rows)
    closest = timed.loc[timed["floor_share_pct"].idxmax()]
    answer = say(
        "{what} ({who}, {size}, {dtype}) comes closest to what memory or products allow: {share}, at {rate} GB/s.",
        what=closest["what"],
        size=closest["size"],
        dtype=closest["dtype"],
        who=closest["who"],
        share=percent(closest["floor_share_pct"]),
        rate=number(closest["gb_per_s"]),
    )
    return Section(answer, [_chart(whole), _table(whole), *_phases(rows)], compared=_compared(timed))


def _table(whole: pd.DataFrame) -> Table:
    """Write each operation once: ours, or else torch's fastest, beside the fastest of the others."""
    duel = versus(whole, PROBLEM, "impl", ["ours"], [name for name in IMPLS if name != "ours"])
    columns: Columns = [
        ("operation, forward + backward", "problem", text),
        ("ours, ms", "median_ms", number),
        ("fastest other", "who_peer", text),
        ("its ms", "median_ms_peer", number),
        ("times as fast (interval)", "gain", text),
        ("verdict", "verdict", text),
        ("of the least time", "floor_share_pct", percent),
        ("extra MB", "extra_mb", number),
        ("its extra MB", "extra_mb_peer", number),
        ("error against float64", "output_rel_error", lambda error: significant(error, 2)),
    ]
    duel = duel.assign(
        gain=intervals(duel), extra_mb=duel["extra_bytes"] / 1e6, extra_mb_peer=duel["extra_bytes_peer"] / 1e6
    )
    return Table("ops", "Ours against the fastest of PyTorch's and Liger's:", duel, filled(duel, columns))


def _phases(rows: pd.DataFrame) -> list[Table]:
    """Write every implementation of every operation, also those that have no peer."""
    columns: Columns = [
        ("operation", "problem", text),
        ("by", "who", text),
        ("phase", "phase", text),
        ("ms", "median_ms", number),
        ("GB/s", "gb_per_s", number),
        ("of the least time", "floor_share_pct", percent),
        ("reason", "reason", text),
    ]
    alone = rows[(rows["op"] == "adamw") | (rows["status"] == "wrong")]
    return [
        Table(
            "others", "Operations without an implementation of ours, and wrong results:", alone, filled(alone, columns)
        )
    ]


def _chart(whole: pd.DataFrame) -> Chart:
    shown = with_figures(whole)
    models = [f"{row['size']}, {row['dtype']}" for _, row in shown.iterrows()]
    shown = shown.assign(rate=shown["gb_per_s"].map(lambda rate: f"{rate:,.0f} GB/s"), model=models)
    return Chart(
        "floors",
        "How close each comes to the least time that its bytes or products allow, forward + backward",
        shown,
        "bar",
        Axis("floor_share_pct", "% of the rate that memory, or of the head products, allow"),
        Axis("what"),
        "who",
        label="rate",
        panel="model",
        limits=[Limit(100.0, "the data sheet's")],
        hover={"ms": "median_ms", "GB/s": "gb_per_s", "model": "size", "dtype": "dtype"},
    )


def _compared(timed: pd.DataFrame) -> list[Compared]:
    best = timed.loc[timed.groupby(["op"], sort=False)["gb_per_s"].idxmax()]
    return [Compared(row["what"], "GB/s", row["gb_per_s"], row["status"]) for _, row in best.iterrows()]
