"""What the memory tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.formulas.sizes import SIZES
from pipeline.formulas.units import FP32_BYTES
from pipeline.report.markup import Markdown
from pipeline.report.section import TOLERANCE, compare
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report.predicted import terms
from pipeline.stages.memory.report.selection import AXES, cell_peaks, of_kind, plain

AMOUNT_WORDS = {"slower than": "more than", "faster than": "less than", "as fast as": "as much as"}
WEIGHT_COPIES = "bf16 copies of weights"


def setting(rows: pd.DataFrame, size: str) -> dict:
    """Say what was measured, where, and by which instrument."""
    measured = ok(rows[rows["size"] == size])
    return {
        "machines": list(measured["machine"].unique()),
        "torch": list(measured["torch"].unique()),
        "size": size,
        "contexts": sorted(measured["context_length"].unique()),
        "batch_sizes": sorted(measured["setting_batch_size"].unique()),
        "precisions": list(measured["precision"].unique()),
        "device_type": measured["device_type"].iloc[0],
    }


def phases(rows: pd.DataFrame, size: str, context_length: int) -> list[dict]:
    """Tell, per precision, how the phases of a training step show: their peaks and what they add and drop."""
    steps = of_kind(plain(rows), "peak")
    here = (steps["size"] == size) & (steps["context_length"] == context_length) & (steps["mode"] == "train_step")
    found = []
    for precision, group in steps[here].groupby("precision", sort=False):
        first, last = (group[group["step"] == number].set_index("phase") for number in (1, group["step"].max()))
        peaks = last["peak_bytes"]
        state = last.loc["forward", "optimizer_state_bytes"]
        found.append(
            {
                "precision": precision,
                "peaks": peaks,
                "highest": peaks.idxmax(),
                "activations": last.loc["forward", "activations_bytes"],
                "gradients": last.loc["optimizer", "gradients_bytes"],
                "roots": last.loc["optimizer", "temporaries_bytes"],
                "state": state,
                "first_forward": first.loc["forward", "peak_bytes"],
                "state_comes_last": state > 0 and first.loc["forward", "optimizer_state_bytes"] == 0,
            }
        )
    return found


def growth(rows: pd.DataFrame, size: str) -> list[dict]:
    """Compare, per mode and precision, the peak at the longest context with that at the shortest."""
    peaks = ok(cell_peaks(plain(rows)))
    found = []
    for (mode, precision), group in peaks[peaks["size"] == size].groupby(["mode", "precision"], sort=False):
        group = group.set_index("context_length")
        if len(group) < 2:
            continue
        shortest, longest = group.index.min(), group.index.max()
        ratio = group.loc[longest, "peak_bytes"] / group.loc[shortest, "peak_bytes"]
        in_optimizer = group.index[group["phase"] == "optimizer"]
        found.append(
            {
                "mode": mode,
                "precision": precision,
                "from": shortest,
                "to": longest,
                "ratio": ratio,
                "word": "grows" if ratio > 1 + TOLERANCE else "hardly grows",
                "in_optimizer": list(in_optimizer),
            }
        )
    return found


def mixed_precision(rows: pd.DataFrame) -> pd.DataFrame:
    """Set the peak in bf16 over that in fp32, per cell: AXES without precision, ratio, and the word for it."""
    peaks = ok(cell_peaks(rows))
    if peaks.empty:
        return pd.DataFrame()
    keys = [axis for axis in AXES if axis != "precision"]
    halves = [peaks[peaks["precision"] == precision] for precision in ("bf16", "fp32")]
    both = halves[0].merge(halves[1], on=keys, suffixes=("", "_fp32"))
    ratio = both["peak_bytes"] / both["peak_bytes_fp32"]
    words = ratio.map(lambda value: AMOUNT_WORDS[compare(value, 1)])
    return both[[*AXES, "peak_bytes", "peak_bytes_fp32"]].assign(ratio=ratio, word=words)


def mixed_precision_by_mode(rows: pd.DataFrame, size: str) -> list[dict]:
    """Sum up per mode what bf16 does to the peak, with the contexts at which it does so."""
    table = mixed_precision(plain(rows))
    if table.empty:
        return []
    table = table[table["size"] == size]
    return [
        {
            "mode": mode,
            "ratio": group.set_index("context_length")["ratio"],
            "by_word": {word: list(part["context_length"]) for word, part in group.groupby("word", sort=False)},
        }
        for mode, group in table.groupby("mode", sort=False)
    ]


def kept_in_bf16(rows: pd.DataFrame, context_length: int) -> dict:
    """Compare by term what a forward pass keeps in bf16 with fp32, and count the copies of weights; empty without."""
    kept = terms(plain(rows))
    kept = kept[kept["context_length"] == context_length].drop_duplicates(["precision", "term"])
    wide = kept.pivot(index="term", columns="precision", values="bytes").astype(float)
    if not {"fp32", "bf16"} <= set(wide) or WEIGHT_COPIES not in wide.index:
        return {}
    both = wide.drop(index=WEIGHT_COPIES).dropna()
    return {
        "copies": wide.loc[WEIGHT_COPIES, "bf16"],
        "fp32": both["fp32"].sum(),
        "bf16": both["bf16"].sum(),
        "less": [Markdown("*{}*").format(term) for term in both.index[both["bf16"] < both["fp32"]]],
        "more": [Markdown("*{}*").format(term) for term in both.index[both["bf16"] > both["fp32"]]],
    }


def residual(rows: pd.DataFrame, size: str) -> dict:
    """Derive the residual-stream tensor in fp32 at each context, and say what the recording holds of it."""
    found = of_kind(plain(rows), "residual")
    found = found[(found["precision"] == "fp32") & (found["size"] == size)]
    if found.empty:
        return {}
    batch_size, contexts = int(found["setting_batch_size"].iloc[0]), sorted(found["context_length"].unique())
    d_model, count = SIZES[size].d_model, 2 * SIZES[size].num_layers
    derived = FP32_BYTES * batch_size * found["context_length"] * d_model
    exact = (found["size_bytes"] == derived) & (found["smallest_bytes"] == derived) & (found["count"] == count)
    return {
        "bytes": pd.Series({length: FP32_BYTES * batch_size * length * d_model for length in contexts}),
        "batch_size": batch_size,
        "context_length": contexts[0],
        "d_model": d_model,
        "element_bytes": FP32_BYTES,
        "count": count,
        "found": bool(exact.all()),
        "seen": sorted(found["size_bytes"].dropna().unique()),
    }


def largest(rows: pd.DataFrame, size: str, mode: str, context_length: int) -> pd.DataFrame:
    """Give the largest allocations of one recording in fp32, equal ones of one line together."""
    found = of_kind(plain(rows), "largest")
    if found.empty:
        return found
    here = (found["size"] == size) & (found["mode"] == mode) & (found["context_length"] == context_length)
    return found[here & (found["precision"] == "fp32")].sort_values("rank")
