"""Which rows of the flash stage answer which question."""

import math
from collections.abc import Mapping

import pandas as pd

from pipeline.report.outcomes import clear_gain
from pipeline.report.table_rows import highest, in_order, known, ok
from pipeline.stages.flash.cell import (
    BOTH_PHASES,
    DTYPES,
    GROUP_AXIS,
    LEADERBOARD,
    OURS,
    PEERS,
    PHASES,
    THREE_TF32,
)

# Ours, then the fastest of the others first.
IMPLS = (
    *("triton", "fa4", "sdpa_cudnn", "sdpa_flash", "sdpa_efficient", "sdpa", "flex", "compiled_eager", "eager"),
    "tiled",
)
ORDERS = {"dtype": DTYPES, "impl": IMPLS, "phase": PHASES}
SHAPE = ["is_causal", "batch_size", "num_heads", GROUP_AXIS, "head_dim", "seq_len"]
PROBLEM = ["dtype", *SHAPE]


class _Words(dict[str, str]):
    """Words for implementations; one that is not listed is the user's own."""

    def __missing__(self, impl: str) -> str:
        return f"your {impl}"


WORDS = _Words(
    {
        "triton": "our Triton kernels",
        "fa4": "FlashAttention-4",
        "sdpa_cudnn": "cuDNN through SDPA",
        "sdpa_flash": "FlashAttention-2 through SDPA",
        "sdpa_efficient": "SDPA's memory-efficient kernel",
        "sdpa": "SDPA",
        "flex": "FlexAttention, compiled",
        "compiled_eager": "plain attention, compiled",
        "eager": "plain attention",
        "tiled": "our FlashAttention-2 in PyTorch operations",
    }
)
USUAL_HEAD_DIM = 64
# Half a unit in the last place. Where eager happens to be more exact than that, the others are held to one rounding.
UNIT_ROUNDOFF = {"bf16": 2.0**-9, "fp16": 2.0**-12, "fp32": 2.0**-24}


def ordered(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort into reading order: causal problems first, of them what was measured most often, then large batches."""
    rows = in_order(rows, ["dtype", "num_heads", GROUP_AXIS, "batch_size", "seq_len", "impl", "phase"], ORDERS)
    rows = rows.assign(repeats=_repeats(rows)).sort_values(
        ["dtype", "is_causal", "repeats", "batch_size", "head_dim"], ascending=[True, *[False] * 4], kind="stable"
    )
    return rows.drop(columns="repeats")


def _repeats(rows: pd.DataFrame) -> pd.Series | int:
    """Count for each row the repeats of its problem (pipeline.report.repeats)."""
    if "samples_of_repeats" not in rows:
        return 1
    counts = rows["samples_of_repeats"].map(len, na_action="ignore").astype(float)
    return counts.groupby([rows[name] for name in PROBLEM]).transform("max").fillna(1)


def ours(rows: pd.DataFrame) -> str | None:
    """Name our implementation to compare: Triton where it has figures, else the tiled one; None without either."""
    measured = set(ok(rows)["impl"])
    return next((name for name in OURS if name in measured), None)


def compared(rows: pd.DataFrame) -> pd.DataFrame:
    """Drop what is ours but not to be compared: the tiled one, a reference to read, where Triton has figures."""
    return rows[(rows["impl"] == ours(rows)) | ~rows["impl"].isin(OURS)]


def one_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the assignment's grid: batch 1, one head, causal."""
    return rows[(rows["batch_size"] == 1) & (rows["num_heads"] == 1) & rows["is_causal"]]


def several_heads(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the shapes of real models."""
    return rows[rows["num_heads"] > 1]


def leaderboard(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep the forward + backward rows at the shape of the assignment's leaderboard."""
    at_shape = (rows[list(LEADERBOARD)] == pd.Series(LEADERBOARD)).all(axis=1)
    return rows[at_shape & (rows["phase"] == BOTH_PHASES)]


def usual_head_dim(rows: pd.DataFrame) -> int:
    """Choose the head_dim to show alone: 64, else the largest that has figures."""
    measured = set(ok(rows)["head_dim"])
    return USUAL_HEAD_DIM if USUAL_HEAD_DIM in measured else int(max(measured))


def fastest(rows: pd.DataFrame) -> pd.DataFrame:
    """Keep, of each problem and phase, the fastest row with a figure."""
    timed = ok(rows)
    return timed.loc[timed.groupby([*PROBLEM, "phase"], sort=False)["median_ms"].idxmin()]


def beside_peers(rows: pd.DataFrame) -> pd.DataFrame:
    """Put ours beside the fastest of torch's implementations: one row per problem and phase at which both have figures.

    The columns are those of ours, and with `_peer` of the other; median_ratio is the peer's time over ours, NaN where
    either is unstable.
    """
    mine = ok(rows[rows["impl"] == ours(rows)])
    peers = fastest(rows[rows["impl"].isin(PEERS)])
    pairs = mine.merge(peers, on=[*PROBLEM, "phase"], suffixes=("", "_peer"), validate="one_to_one")
    is_stable = (pairs["status"] == "ok") & (pairs["status_peer"] == "ok")
    return pairs.assign(median_ratio=(pairs["median_ms_peer"] / pairs["median_ms"]).where(is_stable))


def clear_winners(rows: pd.DataFrame) -> pd.DataFrame:
    """Return, of problems of one phase, the fastest row and how many times faster it is than the next: `gain`.

    Only where that is worth acting on; `next_impl` and `next_ms` are of the next.
    """
    found = []
    for _, group in ok(rows).groupby(PROBLEM, sort=False):
        if len(group) < 2:
            continue
        (_, first), (_, second) = group.nsmallest(2, "median_ms").iterrows()
        if gain := clear_gain(second, first):
            found.append(first.to_dict() | {"gain": gain, "next_impl": second["impl"], "next_ms": second["median_ms"]})
    return pd.DataFrame(found, columns=[*rows, "gain", "next_impl", "next_ms"])


def largest_errors(
    rows: pd.DataFrame, quantities: tuple[str, ...], phase: str
) -> list[tuple[str, float, float | None]]:
    """Return, per dtype, the largest relative error of ours against fp64, and the largest over eager's own error.

    The latter is None where eager has none.
    """
    found = []
    for dtype, group in rows[rows["phase"] == phase].groupby("dtype", sort=False):
        errors, over_eager = [], []
        for column in (f"{quantity}_rel_error" for quantity in quantities):
            measured = known(group, column)
            eager = measured[measured["impl"] == "eager"].set_index(PROBLEM)[column].clip(lower=UNIT_ROUNDOFF[dtype])
            mine = measured[measured["impl"] == ours(rows)].set_index(PROBLEM)[column]
            errors += list(mine)
            over_eager += list((mine / eager).dropna())
        if errors:
            found.append((dtype, max(errors), max(over_eager, default=None)))
    return found


def products_tflops_per_s(beside: Mapping[str, pd.DataFrame] | None) -> dict[str, float]:
    """Return the highest rate of a matrix product alone by its data type, from the rows of the stage ceilings."""
    return highest((beside or {}).get("ceilings", pd.DataFrame()), "tflops_per_s", by="dtype")


def product_rate(row: pd.Series, products: Mapping[str, float]) -> float:
    """Return the rate of a matrix product alone at a row's precision; NaN where none was measured."""
    if row["peak_of"] == THREE_TF32:
        return products.get("tf32", math.nan) / 3
    return products.get(row["dtype"], math.nan)


def rate_below_peak(row: pd.Series, products: Mapping[str, float]) -> float:
    """Return the rate of a product to draw beside a row's peak; NaN where that peak is such a measured rate already."""
    return math.nan if row["peak_source"] == "measured" else product_rate(row, products)


def shape_words(row: pd.Series) -> str:
    """Name a problem in a sentence: `batch 4, 16 heads, length 4096, head_dim 128, causal`."""
    heads = f"{row['num_heads']} heads" if row["num_heads"] > 1 else "one head"
    if row[GROUP_AXIS] > 1:
        heads += f" sharing {row['num_heads'] // row[GROUP_AXIS]} of keys and values"
    mask = "causal" if row["is_causal"] else "no mask"
    return f"batch {row['batch_size']}, {heads}, length {row['seq_len']}, head_dim {row['head_dim']}, {mask}"


def shape_label(row: pd.Series) -> str:
    """Name a problem in a table or figure, batch × heads × length × head_dim: `4×16×4096×128 causal`.

    Of heads that share keys and values, 8 of 32 say: `32:8`.
    """
    shared = f":{row['num_heads'] // row[GROUP_AXIS]}" if row[GROUP_AXIS] > 1 else ""
    sizes = (row["batch_size"], f"{row['num_heads']}{shared}", row["seq_len"], row["head_dim"])
    return f"{'×'.join(map(str, sizes))} {'causal' if row['is_causal'] else 'full'}"
