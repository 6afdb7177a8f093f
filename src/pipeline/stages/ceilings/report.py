"""The ceilings section: what this machine does at most, beside what its data sheet promises."""

from collections.abc import Hashable, Mapping
from typing import Any

import pandas as pd

from pipeline.report.chart import Axis, Chart, Limit
from pipeline.report.formats import count, ms, number, percent, text, written
from pipeline.report.frame import in_order, known, with_figures
from pipeline.report.section import Compared, Section, say
from pipeline.report.table import Columns, Table, filled
from pipeline.stages.ceilings.cell import DTYPES

# All but products, in reading order.
WORDS = {
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


def build(rows: pd.DataFrame, beside: Mapping[str, pd.DataFrame]) -> Section:
    """Return the section of the ceilings stage."""
    best, moved = products(rows), transfers(rows)
    return Section(_answer(best, moved), [_chart(rows), _table(best, moved)], compared=_compared(best, moved))


def products(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest product of each data type, or its outcome."""
    found = rows[(rows["what"] == "matmul") & (rows["status"] != "skipped")]
    best = found.sort_values("tflops_per_s", ascending=False, kind="stable").drop_duplicates("dtype")
    best = in_order(best, ["dtype"], {"dtype": DTYPES})
    share_pct = 100 * best["tflops_per_s"].astype(float) / best["datasheet_tflops_per_s"].astype(float)
    return best.assign(ceiling=written(best, "product in {dtype}"), share_pct=share_pct)


def transfers(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all but products, in reading order, without what the machine lacks."""
    found = rows[rows["kind"].isin(list(WORDS)) & (rows["status"] != "skipped")]
    found = in_order(found, ["kind"], {"kind": tuple(WORDS)})
    share_pct = 100 * found["gb_per_s"].astype(float) / found["datasheet_gb_per_s"].astype(float)
    return found.assign(ceiling=found["kind"].map(WORDS), share_pct=share_pct)


def _compared(best: pd.DataFrame, moved: pd.DataFrame) -> list[Compared]:
    """Return the rates by which machines are compared."""
    rates = [(f"{row['dtype']} product", "TFLOP/s", row["tflops_per_s"], row["status"]) for row in _lines(best)]
    rates += [(row["ceiling"], "GB/s", row["gb_per_s"], row["status"]) for row in _lines(known(moved, "gb_per_s"))]
    return [Compared(*rate) for rate in rates]


def _lines(rows: pd.DataFrame) -> list[dict[Hashable, Any]]:
    return with_figures(rows).to_dict("records")


def _answer(best: pd.DataFrame, moved: pd.DataFrame) -> str:
    trained = with_figures(best[best["dtype"].isin(TRAINED_IN)])
    timed = with_figures(moved).set_index("kind")
    if trained.empty or not {"copy", "operator"} <= {*timed.index}:
        measured = len(with_figures(best)) + len(timed)
        return say(
            "{measured} ceilings were measured, of {all} asked for.", measured=measured, all=len(best) + len(moved)
        )
    fastest = trained.loc[trained["tflops_per_s"].idxmax()]
    return say(
        "Matrix products reach {tflops} TFLOP/s in {dtype}, copies within memory {gb} GB/s. An eager operator takes "
        "{operator} of the host's time.",
        dtype=fastest["dtype"],
        tflops=number(fastest["tflops_per_s"]),
        gb=number(timed.loc["copy", "gb_per_s"]),
        operator=ms(timed.loc["operator", "median_ms"]),
    )


def _chart(rows: pd.DataFrame) -> Chart:
    drawn = in_order(known(rows[rows["what"] == "matmul"], "side"), ["dtype", "side"], {"dtype": DTYPES})
    promised = known(drawn, "datasheet_tflops_per_s").groupby("datasheet_tflops_per_s", sort=False)["dtype"].unique()
    limits = [Limit(peak, f"data sheet, {' and '.join(dtypes)}") for peak, dtypes in promised.items()]
    return Chart(
        "rates",
        "Rate of a product of two square matrices, by their side",
        drawn,
        "line",
        Axis("side", "rows and columns of each matrix", log=True),
        Axis("tflops_per_s", "TFLOP/s", log=True),
        "dtype",
        limits=limits,
        hover={"SM clock (MHz)": "mean_sm_clock_mhz", "power limit": "power_capped", "one call (ms)": "median_ms"},
    )


def _table(best: pd.DataFrame, moved: pd.DataFrame) -> Table:
    best = best.assign(at=written(best, "{side:count} × {side:count}"), promised=best["datasheet_tflops_per_s"])
    moved = moved.assign(at=written(moved, "{tensor_bytes:data_size}"), promised=moved["datasheet_gb_per_s"])
    found = pd.concat([best, moved], ignore_index=True)
    columns: Columns = [
        ("call", "ceiling", text),
        ("TFLOP/s", "tflops_per_s", number),
        ("GB/s", "gb_per_s", number),
        ("data sheet", "promised", number),
        ("share", "share_pct", percent),
        ("of", "at", text),
        ("SM clock (MHz)", "mean_sm_clock_mhz", count),
        ("time of a call", "median_ms", ms),
    ]
    caption = "The fastest product of two matrices in each data type, moving data, and an operator on one number:"
    return Table("ceilings", caption, found, filled(found, columns), all_rows=True)
