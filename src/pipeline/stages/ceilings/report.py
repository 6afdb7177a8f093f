"""Build the ceilings section: this machine's peak rates next to those on its data sheet."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import written
from pipeline.report.frame import having, in_order, with_values
from pipeline.report.section import Compared, Section
from pipeline.report.table import Table
from pipeline.report.words import Words
from pipeline.stages.ceilings.cell import DTYPES

WORDS = Words(__file__)
# Everything except matrix products, in reading order.
NAMES = {
    "copy": "copy in memory",
    "reduction": "sum over memory",
    "l2_copy": "copy in the L2 cache",
    "to_device": "host to GPU",
    "to_host": "GPU to host",
    "to_peer": "GPU to GPU",
    "operator": "eager operator, the host's time to queue it",
    "launch": "single launch, until the GPU has finished",
}
TRAINED_IN = ("bf16", "fp32")


def build(rows: pd.DataFrame, other_stages: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ceilings stage."""
    best, moved = products(rows), transfers(rows)
    return Section(_answer(best, moved), [_chart(rows), _table(best, moved)], compared=_compared(best, moved))


def products(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest matrix product of each data type, or its outcome."""
    found = rows[(rows["what"] == "matmul") & (rows["status"] != "skipped")]
    best = found.sort_values("tflops_per_s", ascending=False, kind="stable").drop_duplicates("dtype")
    best = in_order(best, ["dtype"], {"dtype": DTYPES})
    ceiling, at = (written(best, words) for words in ("matmul in {dtype}", "{side:count} × {side:count}"))
    return best.assign(ceiling=ceiling, at=at, rate=best["tflops_per_s"], promised=best["datasheet_tflops_per_s"])


def transfers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return everything except matrix products, in reading order; skipped rows are left out."""
    found = rows[rows["kind"].isin(list(NAMES)) & (rows["status"] != "skipped")]
    found = in_order(found, ["kind"], {"kind": tuple(NAMES)})
    ceiling, at = found["kind"].map(NAMES), written(found, "{tensor_bytes:data_size}")
    return found.assign(ceiling=ceiling, at=at, rate=found["gb_per_s"], promised=found["datasheet_gb_per_s"])


def _compared(best: pd.DataFrame, moved: pd.DataFrame) -> list[Compared]:
    """Return the rates by which machines are compared."""
    best, moved = (with_values(rows).to_dict("records") for rows in (best, having(moved, "gb_per_s")))
    rates = [(f"{row['dtype']} matmul", "TFLOP/s", row["rate"], row["status"]) for row in best]
    rates += [(row["ceiling"], "GB/s", row["rate"], row["status"]) for row in moved]
    return [Compared(*rate) for rate in rates]


def _answer(best: pd.DataFrame, moved: pd.DataFrame) -> str:
    trained = with_values(best[best["dtype"].isin(TRAINED_IN)])
    timed = with_values(moved).set_index("kind")
    if trained.empty or not {"copy", "operator"} <= {*timed.index}:
        return WORDS.say("measured", measured=len(with_values(best)) + len(timed), all=len(best) + len(moved))
    product = trained.loc[trained["tflops_per_s"].idxmax()]
    return WORDS.say("answer", product=product, **timed.loc[["copy", "operator"]].to_dict("index"))


def _chart(rows: pd.DataFrame) -> Chart:
    drawn = in_order(having(rows[rows["what"] == "matmul"], "side"), ["dtype", "side"], {"dtype": DTYPES})
    promised = having(drawn, "datasheet_tflops_per_s").groupby("datasheet_tflops_per_s", sort=False)["dtype"].unique()
    limits = [Limit(peak, f"data sheet, {' and '.join(dtypes)}") for peak, dtypes in promised.items()]
    axes, hover = (Axis("side", log=True), Axis("tflops_per_s", log=True)), "mean_sm_clock_mhz power_capped median_ms"
    return WORDS.chart("rates", drawn, "line", *axes, "dtype", limits=limits, hover=hover)


def _table(best: pd.DataFrame, moved: pd.DataFrame) -> Table:
    found = pd.concat([best, moved], ignore_index=True)
    found["share_pct"] = 100 * found["rate"].astype(float) / found["promised"].astype(float)
    names = "ceiling tflops_per_s gb_per_s promised:number share_pct at mean_sm_clock_mhz:count median_ms:ms"
    return WORDS.table("ceilings", found, names, only_filled=True)
