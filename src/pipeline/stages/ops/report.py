"""The ops section: what stands between the matrix products, each implementation beside the fastest other."""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from pipeline.formulas.operations import WHOLE, flops, product_flops
from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import number, written
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Compared, Section, say
from pipeline.report.table import Table
from pipeline.report.versus import versus
from pipeline.stages.ops.cell import IMPLS, Cell
from pipeline.subjects.naming import OPERATIONS

PROBLEM = ["op", "dtype", "size", "batch_size", "context_length", "vocab_size"]
CEILING = ["what", "kind", "dtype", "tflops_per_s", "gb_per_s", "cards"]
WORDS = {"ours": "ours", "eager": "eager", "compile": "compiled", "liger": "Liger", "fused": "torch's fused"}
OP_WORDS = {
    "rms_norm": "RMSNorm with the sum before it",
    "rotary": "rotary positions",
    "swiglu": "SwiGLU",
    "linear_cross_entropy": "head and loss",
    "adamw": "AdamW of a block",
}


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ops stage; beside: ceilings, of which times are predicted."""
    rows = in_order(rows, ["size", "dtype", "op", "impl"], {"op": OPERATIONS, "impl": IMPLS})
    rows = rows.assign(what=rows["op"].map(OP_WORDS), who=rows["impl"].map(WORDS))
    rows = rows.assign(operation=written(rows, "{size}, {dtype}: {what}"), model=written(rows, "{size}, {dtype}"))
    ceilings = beside.get("ceilings", pd.DataFrame(columns=CEILING))
    ceilings = ceilings[(ceilings["kind"] == "copy") | (ceilings["what"] == "matmul")]
    whole = predicted(rows[rows["phase"] == WHOLE], ceilings)
    timed = with_figures(whole if len(with_figures(whole)) else rows)
    answer = say(
        "{closest[what]} ({closest[who]}, {closest[model]}) comes closest to what memory or products allow: "
        "{closest[floor_share_pct]:percent}, at {closest[gb_per_s]:number} GB/s.",
        closest=timed.loc[timed["floor_share_pct"].idxmax()],
    )
    best = timed.loc[timed.groupby("op", sort=False)["gb_per_s"].idxmax()]
    return Section(
        answer,
        [_floors(whole), _roofline(whole, ceilings), _duel(whole), _times(whole, ceilings)],
        compared=[Compared(row["what"], "GB/s", row["gb_per_s"], row["status"]) for _, row in best.iterrows()],
    )


def predicted(whole: pd.DataFrame, ceilings: pd.DataFrame) -> pd.DataFrame:
    """Add FLOP/byte, TFLOP/s, and the time by the rates that this machine's ceilings have, in `predicted_ms`.

    Bytes at the rate of a copy, or the head's products at that of the fastest matrix product in the data type.
    """
    widths = [Cell(**{name: row[name] for name in PROBLEM}).widths for _, row in whole.iterrows()]
    ops = list(zip(whole["op"], whole["phase"], widths, strict=True))
    work = pd.Series([flops(*each) for each in ops], whole.index, dtype=float)
    products = pd.Series([product_flops(*each) for each in ops], whole.index, dtype=float)
    copy_gb_per_s, products_tflops = _rates(ceilings)
    by_bytes_ms = whole["moved_bytes"] / copy_gb_per_s / 1e6
    predicted_ms = by_bytes_ms.where(products == 0, products / whole["dtype"].map(products_tflops).astype(float) / 1e9)
    return whole.assign(
        flop_per_byte=work / whole["moved_bytes"],
        work_tflops_per_s=work / whole["median_ms"] / 1e9,
        predicted_ms=predicted_ms,
        predicted_times=whole["median_ms"] / predicted_ms,
    )


def _rates(ceilings: pd.DataFrame) -> tuple[float, dict[str, float]]:
    """Return the rate of a copy within memory, in GB/s, and of the fastest product by data type, in TFLOP/s."""
    products = ceilings.groupby("dtype")["tflops_per_s"].max().to_dict()
    return ceilings.loc[ceilings["kind"] == "copy", "gb_per_s"].max(), products


def _floors(whole: pd.DataFrame) -> Chart:
    shown = with_figures(whole)
    title = "How close each comes to the least time that its bytes or products allow, forward + backward"
    shown = shown.assign(rate=written(shown, "{gb_per_s:,.0f} GB/s"))
    axes = Axis("floor_share_pct", "% of the rate that memory, or of the head products, allow"), Axis("what")
    limits, hover = [Limit(100.0, "the data sheet's")], {"ms": "median_ms"}
    return Chart("floors", title, shown, "bar", *axes, "who", "rate", panel="model", limits=limits, hover=hover)


def _roofline(whole: pd.DataFrame, ceilings: pd.DataFrame) -> Chart:
    """Draw the rates of one data type over FLOP/byte, below what a copy and a product reach.

    Of each operation the point furthest from those of others bears its name.
    """
    copy_gb_per_s, products = _rates(ceilings)
    shown = known(with_figures(whole[whole["dtype"].isin(products)]), "predicted_ms")
    shown = shown[shown["dtype"] == shown["dtype"].min()]
    places = np.log(shown[["flop_per_byte", "work_tflops_per_s"]].to_numpy(dtype=float))
    others = shown["op"].to_numpy()[:, None] != shown["op"].to_numpy()
    apart = np.linalg.norm(places[:, None] - places, axis=2).min(axis=1, where=others, initial=np.inf)
    bears_name = shown.index.isin(pd.Series(apart, shown.index).groupby(shown["op"]).idxmax())
    per_byte = shown["flop_per_byte"]
    roof = products.get(shown["dtype"].min(), 0.0)
    low, ridge, high = per_byte.min() / 1.5, 1e3 * roof / copy_gb_per_s, 1.5 * per_byte.max()
    lines = {
        f"copy: {number(copy_gb_per_s)} GB/s": [(low, low * copy_gb_per_s / 1e3), (ridge, roof)],
        f"product: {number(roof)} TFLOP/s": [(ridge, roof), (max(high, 2 * ridge), roof)],
    }
    return Chart(
        "roofline",
        "Rate by work per byte, forward + backward, below what copies and products reach here",
        shown.assign(name=shown["what"].str.split().str[0].where(bears_name, "")),
        "point",
        Axis("flop_per_byte", "FLOP/byte", log=True),
        Axis("work_tflops_per_s", "TFLOP/s", log=True),
        "who",
        label="name",
        lines=lines,
        hover={"operation": "operation", "ms": "median_ms", "predicted ms": "predicted_ms", "GB/s": "gb_per_s"},
    )


def _duel(whole: pd.DataFrame) -> Table:
    """Write each operation once: ours beside the fastest of the others."""
    duel = versus(whole, PROBLEM, "impl", ["ours"], [name for name in IMPLS if name != "ours"])
    names = "operation median_ms who_peer median_ms_peer gain verdict floor_share_pct extra_bytes extra_bytes_peer"
    heads = {"median_ms": "ours, ms", "who_peer": "fastest other", "floor_share_pct": "of the least time"}
    heads |= {"extra_bytes": "extra memory", "extra_bytes_peer": "its own", "output_rel_error": "error against float64"}
    caption = "Forward + backward, ours against the fastest of PyTorch's and Liger's:"
    names += " output_rel_error"
    return Table.of("ops", caption, duel, names, all_rows=False, only_filled=True, heads=heads)


def _times(whole: pd.DataFrame, ceilings: pd.DataFrame) -> Table:
    """Write every implementation's time beside the predicted one, wrong results too."""
    cards = (", ".join(rows["cards"].dropna().unique()) for rows in (whole, ceilings) if len(rows))
    caption = f"Forward + backward, ms / times the predicted ones; measured on {'; ceilings on '.join(cards)}:"
    # Of an operation, whatever came of an implementation.
    whole = whole.assign(predicted_ms=whole.groupby("operation")["predicted_ms"].transform("max"))
    told = {"times": written(whole, "{predicted_times:times}"), "predicted": written(whole, "{predicted_ms:number}")}
    whole = whole.assign(**told)
    names, heads = "operation predicted who median_ms times", {"predicted": "predicted, ms"}
    return Table.of("times", caption, whole, names, across="", heads=heads)
