"""How near the model of memory comes to what was recorded, and where it does not."""

import pandas as pd

from pipeline.model.activations import Workload
from pipeline.model.memory import predict_peaks
from pipeline.model.sizes import SIZES
from pipeline.report.section import TOLERANCE
from pipeline.stages.memory.selection import (
    AXES,
    CATEGORY_WORDS,
    COMPOSITION,
    PREDICTED_COMPOSITION,
    cell_peaks,
    of_kind,
    ok,
)

PREDICTED_WITHIN = 0.05


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


def out_of_memory(rows: pd.DataFrame, on_gpu: bool) -> list[dict]:
    """Give, for each cell that ran out of memory, the peak that the model predicts for it."""
    found = []
    for _, row in rows[rows["status"] == "oom"].drop_duplicates(AXES).iterrows():
        workload = Workload(
            SIZES[row["size"]],
            vocab_size=int(row["vocab_size"]),
            batch_size=int(row["batch_size"]),
            seq_len=int(row["context_length"]),
            precision=row["precision"],
            attention=row["attention"],
            checkpoint_every=int(row["checkpoint_every"]),
            device_type="cuda" if on_gpu else "cpu",
        )
        moments = predict_peaks(workload, row["mode"]).values()
        found.append({"cell": row[AXES].to_dict(), "bytes": max(moment.total_bytes for moment in moments)})
    return found


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
