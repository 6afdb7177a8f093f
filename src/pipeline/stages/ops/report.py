"""The ops section: the operations between matrix products, with ours compared to the fastest other."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from pipeline.formulas.operations import WHOLE, flops, product_flops
from pipeline.formulas.parameters import BY_SIZE
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import number, written
from pipeline.report.frame import having, in_order, with_values, without_skipped
from pipeline.report.section import Compared, Section
from pipeline.report.table import NOTHING, Table
from pipeline.report.versus import FASTER, SLOWER, versus
from pipeline.report.words import Words
from pipeline.stages.ops.cell import IMPLS, Cell
from pipeline.subjects.naming import OPERATIONS

WORDS = Words(__file__)
PROBLEM = ["op", "dtype", "size", "batch_size", "context_length", "vocab_size"]
CEILING = ["what", "kind", "dtype", "tflops_per_s", "gb_per_s", "cards"]
NAMES = {"ours": "ours", "eager": "eager", "compile": "compiled", "liger": "Liger", "fused": "torch's fused"}
ORDERS = {"size": BY_SIZE, "op": OPERATIONS, "impl": IMPLS}
HEAD = "linear_cross_entropy"
OP_NAMES = {
    "rms_norm": "RMSNorm with the sum before it",
    "rotary": "rotary positions",
    "swiglu": "SwiGLU",
    HEAD: "head and loss",
    "adamw": "AdamW of a block",
}


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ops stage; other_stages: ceilings, from which times are predicted."""
    rows = in_order(rows, ["size", "dtype", "op", "vocab_size", "impl"], ORDERS)
    rows = rows.assign(what=_operation_names(rows), who=rows["impl"].map(NAMES))
    rows = rows.assign(model=written(rows, "{size}, {dtype}"))
    tokens = pd.Series(written(rows, ", {batch_size} × {context_length:,} tokens"), rows.index)
    rows = rows.assign(operation=rows["model"] + tokens.where(rows["op"] != "adamw", "") + ": " + rows["what"])
    ceilings = other_stages.get("ceilings", pd.DataFrame(columns=CEILING))
    ceilings = ceilings[(ceilings["kind"] == "copy") | (ceilings["what"] == "matmul")]
    copy_gb_per_s = ceilings.loc[ceilings["kind"] == "copy", "gb_per_s"].max()
    products = ceilings.groupby("dtype")["tflops_per_s"].max().to_dict()
    whole = _predicted(rows[rows["phase"] == WHOLE], copy_gb_per_s, products)
    timed = with_values(whole if len(with_values(whole)) else rows)
    best = timed.loc[_largest(timed).groupby("operation", sort=False)["gb_per_s"].idxmax()]
    duel = versus(whole, PROBLEM, "impl", ["ours"], [name for name in IMPLS if name != "ours"])
    return Section(
        _answer(duel) + WORDS.say("closest", **timed.loc[timed["floor_share_pct"].idxmax()]),
        [
            _floors(_largest(whole)),
            _roofline(whole, copy_gb_per_s, products),
            _times(whole, duel, ceilings),
        ],
        compared=[Compared(each["operation"], *_rate(each), each["status"]) for each in best.to_dict("records")],
    )


def _answer(duel: pd.DataFrame) -> str:
    if duel.empty:
        return ""
    verdicts = duel["verdict"].value_counts().reindex([FASTER, SLOWER], fill_value=0)
    return WORDS.say("answer", ops=duel["op"].nunique(), n=len(duel), **verdicts, open=len(duel) - verdicts.sum()) + " "


def _rate(row: Mapping[Hashable, Any]) -> tuple[str, float]:
    """Return the unit and value of a rate: TFLOP/s for head and loss, which are mostly matmuls, else GB/s."""
    is_head = row["op"] == HEAD and "work_tflops_per_s" in row
    return ("TFLOP/s", row["work_tflops_per_s"]) if is_head else ("GB/s", row["gb_per_s"])


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows of the two largest models."""
    return rows[rows["size"].isin(rows["size"].unique()[-2:])]


def _operation_names(rows: pd.DataFrame) -> pd.Series:
    """Name the operations; head and loss with the vocabulary, since a model may have several."""
    vocabulary = pd.Series(written(rows, ", vocabulary {vocab_size:count}"), rows.index).where(rows["op"] == HEAD, "")
    return rows["op"].map(OP_NAMES) + vocabulary


def _predicted(whole: pd.DataFrame, copy_gb_per_s: float, products_tflops: Mapping[str, float]) -> pd.DataFrame:
    """Add FLOP/byte, TFLOP/s, and `predicted_ms`, the time at the rates of this machine's ceilings.

    Bytes take the rate of a copy; the head instead takes that of the fastest matrix product in its data type.
    """
    ops = [(row["op"], WHOLE, Cell(**row[PROBLEM]).widths) for _, row in whole.iterrows()]
    work, products = (
        pd.Series([formula(*each) for each in ops], whole.index, float) for formula in (flops, product_flops)
    )
    by_bytes_ms = whole["moved_bytes"] / copy_gb_per_s / 1e6
    predicted_ms = by_bytes_ms.where(products == 0, products / whole["dtype"].map(products_tflops).astype(float) / 1e9)
    return whole.assign(
        flop_per_byte=work / whole["moved_bytes"],
        work_tflops_per_s=work / whole["median_ms"] / 1e9,
        predicted_ms=predicted_ms,
        predicted_times=whole["median_ms"] / predicted_ms,
    )


def _floors(whole: pd.DataFrame) -> Chart:
    rates = pd.Series(written(whole, "{gb_per_s:number} GB/s"), whole.index)
    of_head = pd.Series(written(whole, "{work_tflops_per_s:number} TFLOP/s"), whole.index)
    shown = with_values(whole.assign(rate=rates.mask(whole["op"] == HEAD, of_head)))
    promised = whole["bandwidth_source"].eq("datasheet").any()
    axes, limits = ("floor_share_pct", "what"), [Limit(100.0, "the data sheet's" if promised else "measured here")]
    return WORDS.chart(
        "floors", shown, "bar", *axes, "who", label="rate", panel="model", limits=limits, hover="median_ms"
    )


def _roofline(whole: pd.DataFrame, copy_gb_per_s: float, products_tflops: Mapping[str, float]) -> Chart:
    """Draw the rates of one data type over FLOP/byte, below those of a copy and a matrix product.

    For each operation, the point furthest from those of other operations is labelled.
    """
    shown = having(with_values(whole[whole["dtype"].isin(products_tflops)]), "predicted_ms")
    shown = shown[shown["dtype"] == shown["dtype"].min()]
    positions = np.log(shown[["flop_per_byte", "work_tflops_per_s"]].to_numpy(dtype=float))
    others = shown["op"].to_numpy()[:, None] != shown["op"].to_numpy()
    distances = np.linalg.norm(positions[:, None] - positions, axis=2).min(axis=1, where=others, initial=np.inf)
    has_label = shown.index.isin(pd.Series(distances, shown.index).groupby(shown["op"]).idxmax())
    shown = shown.assign(name=shown["what"].str.split().str[0].where(has_label, ""))
    per_byte, roof = shown["flop_per_byte"], products_tflops.get(shown["dtype"].min(), 0.0)
    low, ridge, high = per_byte.min() / 1.5, 1e3 * roof / copy_gb_per_s, 1.5 * per_byte.max()
    lines = {
        f"copy: {number(copy_gb_per_s)} GB/s": [(low, low * copy_gb_per_s / 1e3), (ridge, roof)],
        f"matmul: {number(roof)} TFLOP/s": [(ridge, roof), (max(high, 2 * ridge), roof)],
    }
    axes = Axis("flop_per_byte", log=True), Axis("work_tflops_per_s", log=True)
    hover = "operation median_ms predicted_ms gb_per_s"
    return WORDS.chart("roofline", shown, "point", *axes, "who", hover=hover, label="name", lines=lines)


def _times(whole: pd.DataFrame, duel: pd.DataFrame, ceilings: pd.DataFrame) -> Table:
    """Tabulate each operation in its largest model: times or outcomes, the predicted time, how ours compares."""
    whole = whole[whole["size"] == whole.groupby(["op", "dtype"])["size"].transform("last")]
    whole = in_order(whole, ["op", "size", "dtype", "vocab_size", "impl"], ORDERS)
    cards = (", ".join(rows["cards"].dropna().unique()) for rows in (whole, ceilings) if len(rows))
    duel = duel.assign(
        beside=written(duel, "{gain}, {verdict}"),
        extra=written(duel, "{extra_bytes:data_size} / {extra_bytes_peer:data_size}"),
    )
    whole = without_skipped(whole, "impl").merge(duel[[*PROBLEM, "beside", "extra"]], "left", PROBLEM)
    whole = whole.astype({"beside": object, "extra": object}).fillna({"beside": NOTHING, "extra": NOTHING})
    # One prediction per operation, also for implementations without a time: else it would have several lines.
    whole = whole.assign(predicted_ms=whole.groupby("operation")["predicted_ms"].transform("max"))
    whole = whole.assign(predicted=written(whole, "{predicted_ms:number}"))
    names = "operation beside extra predicted who median_ms predicted_times:times"
    return WORDS.table("times", whole, names, across="who", cards="; ceilings on ".join(cards))
