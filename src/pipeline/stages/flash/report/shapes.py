"""The table of the shapes of real models: ours beside the fastest of torch's, in turn and back to back."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.page_parts import MOST_TABLE_ROWS, Table
from pipeline.report.section import counted, listing, percent, ratio
from pipeline.report.table_rows import known
from pipeline.report.tables import number_cells, significant
from pipeline.stages.flash.cell import THREE_TF32
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    PROBLEM,
    SHAPE,
    WORDS,
    beside_peers,
    product_rate,
    shape_label,
)

# fp16 has rows of its own where it is so many times as fast or as slow as bf16.
TELLING = 1.1


def shapes(rows: pd.DataFrame, products: Mapping[str, float]) -> list[Table | str]:
    """Return the table, and what it leaves out; nothing where ours or all of torch's have no figures.

    products: the rate of a matrix product alone by its data type.
    """
    pairs = beside_peers(rows)
    both = pairs[pairs["phase"] == BOTH_PHASES]
    if both.empty:
        return []
    alike = _fp16_as_bf16(both)
    shown = _chosen(both.drop(index=alike.index))
    table = Table(_title(shown, products), _cells(shown, pairs, products))
    return [table, *filter(None, [_said_of_fp16(alike), _said_of_held(rows)])]


def _fp16_as_bf16(both: pd.DataFrame) -> pd.DataFrame:
    """Return the rows in fp16 whose times are those in bf16 to within TELLING, with both ratios to bf16."""
    bf16 = both[both["dtype"] == "bf16"].set_index(SHAPE)[["median_ms", "median_ms_peer"]].add_suffix("_bf16")
    found = both[both["dtype"] == "fp16"].join(bf16, on=SHAPE, how="inner")
    found = found.assign(
        ours=found["median_ms"] / found["median_ms_bf16"], peers=found["median_ms_peer"] / found["median_ms_peer_bf16"]
    )
    is_alike = found[["ours", "peers"]].apply(lambda ratios: ratios.between(1 / TELLING, TELLING, inclusive="neither"))
    return found[is_alike.all(axis=1)]


def _chosen(both: pd.DataFrame) -> pd.DataFrame:
    """Keep as many rows as a table may have, the first of each dtype and mask among them."""
    first = ~both.duplicated(["dtype", "is_causal"])
    kept = [*both.index[first], *both.index[~first]][:MOST_TABLE_ROWS]
    return both[both.index.isin(kept)]


def _cells(both: pd.DataFrame, pairs: pd.DataFrame, products: Mapping[str, float]) -> pd.DataFrame:
    """Write a row per problem: times in ms, their ratios, and our rate."""
    forward = pairs[pairs["phase"] == "forward"].set_index(PROBLEM)["median_ratio"]
    peers = pd.DataFrame({"median_ms": both["median_ms_peer"], "status": both["status_peer"], "reason": None})
    problems = pd.MultiIndex.from_frame(both[PROBLEM])
    cells = {
        "dtype": both["dtype"],
        "batch×heads×length×head_dim": both.apply(shape_label, axis=1),
        "ours": number_cells(both, "median_ms"),
        "fastest of torch's": number_cells(peers, "median_ms") + ", " + both["impl_peer"].map(WORDS),
        "ratio": both["median_ratio"].map(significant),
        "ratio, forward": [significant(value) for value in forward.reindex(problems)],
    }
    if _is_held(both):
        cells["ratio, sustained"] = (both["sustained_ms_peer"] / both["sustained_ms"]).map(significant)
    rates = both["tflops_per_s"].map(significant)
    if products:
        shares = both["tflops_per_s"] / both.apply(product_rate, axis=1, products=products)
        rates += [f" ({percent(share)})" if pd.notna(share) else "" for share in shares]
    cells["ours, TFLOP/s"] = rates
    return pd.DataFrame(cells)


def _title(both: pd.DataFrame, products: Mapping[str, float]) -> str:
    words = ["Shapes of real models, forward + backward in ms; ratio: the time of torch's over ours"]
    if _is_held(both):
        words.append("sustained: back to back for seconds, without flushing L2, where the host keeps up")
    if products:
        third = " (fp32: a third of TF32's)" if (both["peak_of"] == THREE_TF32).any() else ""
        words.append(f"in brackets the share of a matmul's highest rate in that dtype{third}")
    return f"{'; '.join(words)}:"


def _is_held(rows: pd.DataFrame) -> bool:
    return not known(rows, "sustained_tflops_per_s").empty


def _said_of_fp16(alike: pd.DataFrame) -> str:
    if alike.empty:
        return ""
    return (
        f"fp16 ({counted(len(alike), 'shape')}) is left out: ours takes {_span(alike['ours'])} its time in bf16, the "
        f"fastest of torch's {_span(alike['peers'])}."
    )


def _said_of_held(rows: pd.DataFrame) -> str:
    """Say how much longer calls take back to back than in turn, by implementation."""
    held = known(rows[rows["phase"] == BOTH_PHASES], "sustained_ms", "median_ms")
    if held.empty:
        return ""
    longer = (held["sustained_ms"] / held["median_ms"]).groupby(held["impl"], sort=False).median()
    words = listing(f"{ratio(value)} ({WORDS[str(impl)]})" for impl, value in longer.items())
    return f"Back to back, forward + backward takes {words} as long as in turn with the others; medians over shapes."


def _span(ratios: pd.Series) -> str:
    low, high = ratio(ratios.min()), ratio(ratios.max())
    return low if low == high else f"{low} to {high}"
