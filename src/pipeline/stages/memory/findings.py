"""What the memory tables say: every number and every comparative word of the section's prose."""

import pandas as pd

from pipeline.model.activations import FP32_BYTES
from pipeline.model.sizes import SIZES
from pipeline.report.section import TOLERANCE, compare, compare_ratio
from pipeline.stages.memory.selection import (
    AXES,
    CATEGORY_WORDS,
    COMPOSITION,
    PREDICTED_COMPOSITION,
    cell_peaks,
    in_order,
    of_kind,
    ok,
    plain,
)

AMOUNT_WORDS = {"slower than": "more than", "faster than": "less than", "as fast as": "as much as"}
PREDICTED_WITHIN = 0.05
TIMES = ["median_ms", "q1_ms", "q3_ms"]


def setting(rows: pd.DataFrame, size: str) -> dict:
    """Say what was measured, where, and by which instrument."""
    measured = ok(rows[rows["size"] == size])
    return {
        "machines": list(measured["machine"].unique()),
        "torch": list(measured["torch"].unique()),
        "size": size,
        "contexts": sorted(measured["context_length"].unique()),
        "batch_sizes": sorted(measured["batch_size"].unique()),
        "precisions": list(measured["precision"].unique()),
        "on_gpu": bool((measured["device_type"] == "cuda").any()),
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
        group = group.set_index("context_length")["peak_bytes"]
        if len(group) > 1:
            shortest, longest = group.index.min(), group.index.max()
            ratio = group[longest] / group[shortest]
            word = "grows" if ratio > 1 + TOLERANCE else "hardly grows"
            found.append(
                {"mode": mode, "precision": precision, "from": shortest, "to": longest, "ratio": ratio, "word": word}
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


def weight_copies(rows: pd.DataFrame) -> float | None:
    """Give the bytes of the bf16 copies of the weights that the model counts; None without such a cell."""
    terms = of_kind(plain(rows), "term")
    if terms.empty:
        return None
    copies = terms.loc[terms["term"] == "bf16 copies of weights", "predicted_bytes"]
    return None if copies.empty else copies.max()


def residual(rows: pd.DataFrame, size: str) -> dict:
    """Derive the residual-stream tensor in fp32 at each context, and say what the recording holds of it."""
    found = of_kind(plain(rows), "residual")
    found = found[(found["precision"] == "fp32") & (found["size"] == size)]
    if found.empty:
        return {}
    sizes = found.drop_duplicates("context_length").set_index("context_length")["predicted_bytes"].sort_index()
    batch_size, context_length = int(found["batch_size"].iloc[0]), int(sizes.index[0])
    exact = (found["size_bytes"] == found["predicted_bytes"]) & (found["smallest_bytes"] == found["predicted_bytes"])
    return {
        "bytes": sizes,
        "batch_size": batch_size,
        "context_length": context_length,
        "d_model": SIZES[size].d_model,
        "element_bytes": FP32_BYTES,
        "count": int(found["predicted_count"].iloc[0]),
        "found": bool((exact & (found["count"] == found["predicted_count"])).all()),
        "seen": sorted(found["size_bytes"].dropna().unique()),
    }


def largest(rows: pd.DataFrame, size: str, mode: str, context_length: int) -> pd.DataFrame:
    """Give the largest allocations of one recording in fp32, equal ones of one line together."""
    found = of_kind(plain(rows), "largest")
    if found.empty:
        return found
    here = (found["size"] == size) & (found["mode"] == mode) & (found["context_length"] == context_length)
    return found[here & (found["precision"] == "fp32")].sort_values("rank")


def predictions(rows: pd.DataFrame) -> dict:
    """Say how near the predicted peaks come: how many within the limit, the worst, and what the others miss."""
    peaks = ok(cell_peaks(rows))
    misses = peaks["error"].abs()
    beyond = peaks[misses > PREDICTED_WITHIN]
    return {
        "cells": len(peaks),
        "limit": PREDICTED_WITHIN,
        "within": int((misses <= PREDICTED_WITHIN).sum()),
        "typical": misses.median(),
        "largest": misses.max(),
        "worst": peaks.loc[misses.idxmax()].to_dict(),
        "beyond": [_miss(row) for _, row in beyond.iterrows()],
    }


def _miss(peak: pd.Series) -> dict:
    """Name the category in which a prediction is off the most, and by how many bytes."""
    differences = {
        name: peak[predicted] - peak[measured]
        for name, measured, predicted in zip(CATEGORY_WORDS, COMPOSITION, PREDICTED_COMPOSITION, strict=True)
    }
    category = max(differences, key=lambda name: abs(differences[name]))
    return {
        "cell": peak[AXES].to_dict(),
        "error": abs(peak["error"]),
        "word": "above" if peak["error"] > 0 else "below",
        "category": CATEGORY_WORDS[category],
        "bytes": abs(differences[category]),
        "same_phase": peak["phase"] == peak["predicted_phase"],
        "phase": peak["phase"],
        "predicted_phase": peak["predicted_phase"],
    }


def saved(rows: pd.DataFrame) -> dict:
    """Compare what lives between forward and backward with the sum of the predicted terms."""
    found = of_kind(rows, "saved")
    if found.empty:
        return {}
    errors = (found["predicted_bytes"] / found["activations_bytes"] - 1).abs()
    return {"cells": len(found), "largest_error": errors.max(), "exact": bool(errors.max() < TOLERANCE / 10)}


def trade(rows: pd.DataFrame) -> pd.DataFrame:
    """Set every attention and checkpointing of a training step beside eager without checkpointing.

    Returns AXES, status, reason, machine, torch, phase, peak_bytes, saved_bytes, median_ms, and over the plain cell:
    memory_ratio, time_ratio, and low_ and high_time_ratio, which the quartiles of both allow. Only settings of
    precision, size and context are in it of which more than the plain cell was asked for; empty without figures.
    """
    peaks = cell_peaks(rows[rows["mode"] == "train_step"])
    setting_axes = ["precision", "size", "context_length"]
    peaks = peaks[peaks.groupby(setting_axes)["attention"].transform("size") > 1]
    if ok(peaks).empty:
        return pd.DataFrame()
    times = of_kind(rows, "time")[[*AXES, *TIMES]]
    kept = of_kind(rows, "saved")[[*AXES, "activations_bytes"]].rename(columns={"activations_bytes": "saved_bytes"})
    table = peaks[[*AXES, "status", "reason", "machine", "torch", "phase", "peak_bytes"]]
    table = table.merge(times, on=AXES, how="left").merge(kept, on=AXES, how="left")
    base = plain(table)[[*setting_axes, "peak_bytes", *TIMES]]
    table = table.merge(base, on=setting_axes, how="left", suffixes=("", "_plain"))
    return in_order(
        table.assign(
            memory_ratio=table["peak_bytes"] / table["peak_bytes_plain"],
            time_ratio=table["median_ms"] / table["median_ms_plain"],
            low_time_ratio=table["q1_ms"] / table["q3_ms_plain"],
            high_time_ratio=table["q3_ms"] / table["q1_ms_plain"],
        )
    )


def trade_words(table: pd.DataFrame) -> list[dict]:
    """Say for each variant what it does to memory and to time, in every setting where it was measured."""
    variants = ok(table)[(ok(table)["attention"] != "eager") | (ok(table)["checkpoint_every"] > 0)]
    return [
        {
            "attention": attention,
            "checkpoint_every": int(every),
            "memory": _by_setting(group, "memory_ratio"),
            "time": _by_setting(group, "time_ratio"),
            "time_words": sorted(set(_time_words(group))),
            "by_optimizer": bool((group["phase"] == "optimizer").all()),
        }
        for (attention, every), group in variants.groupby(["attention", "checkpoint_every"], sort=False)
    ]


def _by_setting(group: pd.DataFrame, column: str) -> pd.Series:
    names = group["precision"] + " at " + group["context_length"].astype(str)
    return pd.Series(group[column].to_numpy(), index=names).dropna()


def _time_words(group: pd.DataFrame) -> list[str]:
    """Compare step times; `compare_ratio` takes the other's time over this one's."""
    timed = group[group["time_ratio"].notna()]
    columns = (1 / timed[name] for name in ("time_ratio", "high_time_ratio", "low_time_ratio"))
    return [compare_ratio(*three) for three in zip(*columns, strict=True)]


def allocator(rows: pd.DataFrame) -> dict:
    """Compare the replayed peak with the caching allocator's own, and with what it took from the device."""
    own = of_kind(rows, "allocator")
    if own.empty:
        return {}
    peaks = of_kind(rows, "peak").groupby(AXES)["peak_bytes"].max().reset_index()
    both = own.drop(columns="peak_bytes").merge(peaks, on=AXES)
    return {
        "cells": len(both),
        "same": bool((both["requested_peak_bytes"] == both["peak_bytes"]).all()),
        "apart": (both["requested_peak_bytes"] / both["peak_bytes"] - 1).abs().max(),
        "rounding": (both["allocated_peak_bytes"] / both["requested_peak_bytes"] - 1).median(),
        "reserve": (both["reserved_peak_bytes"] / both["allocated_peak_bytes"] - 1).median(),
        "device_bytes": both["device_bytes"].max(),
    }
