"""The table of the shapes of real models: ours beside the fastest of torch's, in turn and back to back."""

from collections.abc import Mapping

import pandas as pd

from pipeline.report.page_parts import MOST_TABLE_ROWS, Table
from pipeline.report.section import percent
from pipeline.report.table_rows import known
from pipeline.report.tables import number_cells, significant
from pipeline.stages.flash.cell import THREE_TF32
from pipeline.stages.flash.report.facts import (
    BOTH_PHASES,
    PROBLEM,
    WORDS,
    beside_peers,
    product_rate,
    shape_label,
)


def shapes(rows: pd.DataFrame, products: Mapping[str, float]) -> list[Table]:
    """Return the table; nothing where ours or all of torch's have no figures.

    products: the rate of a matrix product alone by its data type.
    """
    pairs = beside_peers(rows)
    both = pairs[pairs["phase"] == BOTH_PHASES]
    if both.empty:
        return []
    shown = _chosen(both)
    return [Table(_title(shown, len(both), products), _cells(shown, pairs, products))]


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


def _title(shown: pd.DataFrame, measured: int, products: Mapping[str, float]) -> str:
    some = f", {len(shown)} of {measured}" if len(shown) < measured else ""
    words = [f"Shapes of real models{some}: forward + backward in ms; ratio: the time of torch's over ours"]
    if _is_held(shown):
        words.append(
            "sustained: back to back for seconds, without flushing L2 (n/a without cuDNN, or if the host is slower)"
        )
    if products:
        words.append("in brackets the share of a matmul's highest rate in that dtype")
        if (shown["peak_of"] == THREE_TF32).any():
            words[-1] += " (fp32: of a third of TF32's, since each product takes three)"
    return f"{'; '.join(words)}:"


def _is_held(rows: pd.DataFrame) -> bool:
    return not known(rows, "sustained_tflops_per_s").empty
