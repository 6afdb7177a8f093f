"""What the model of memory predicts of each recording, how near that comes, and where it does not.

Predictions are made here and not when a cell is measured: the model may be mended without measuring again.
"""

import pandas as pd

from pipeline.formulas.activations import Workload, saved_terms
from pipeline.formulas.peak_memory import Moment, predict_peaks
from pipeline.formulas.sizes import SIZES
from pipeline.report.section import TOLERANCE
from pipeline.report.table_rows import ok
from pipeline.stages.memory.report.selection import (
    AXES,
    CATEGORY_WORDS,
    COMPOSITION,
    PREDICTED_COMPOSITION,
    cell_peaks,
    of_kind,
)

PREDICTED_WITHIN = 0.05


def with_predictions(rows: pd.DataFrame) -> pd.DataFrame:
    """Add to each recorded phase of a step what the model predicts for it.

    Adds predicted_bytes, predicted_at and PREDICTED_COMPOSITION, empty in other rows.
    """
    phases = ok(rows)[(ok(rows)["kind"] == "peak") & (ok(rows)["step"] > 0)]
    lines = {index: _prediction(row) for index, row in phases.iterrows()}
    columns = ["predicted_bytes", "predicted_at", *PREDICTED_COMPOSITION]
    return rows.join(pd.DataFrame.from_dict(lines, orient="index", columns=columns))


def _prediction(row: pd.Series) -> list:
    moment = _moments(row, first_step=row["step"] == 1)[row["phase"]]
    return [moment.total_bytes, moment.what, *moment.bytes_by_category.values()]


def _moments(row: pd.Series, first_step: bool = False) -> dict[str, Moment]:
    return predict_peaks(_workload(row), row["mode"], first_step=first_step)


def _workload(row: pd.Series) -> Workload:
    return Workload(
        SIZES[row["size"]],
        vocab_size=int(row["setting_vocab_size"]),
        batch_size=int(row["setting_batch_size"]),
        seq_len=int(row["context_length"]),
        precision=row["precision"],
        attention=row["attention"],
        checkpoint_every=int(row["checkpoint_every"]),
        device_type=row["device_type"],
    )


def terms(rows: pd.DataFrame) -> pd.DataFrame:
    """Count, for each recording with gradients, what its forward pass keeps: AXES, status, reason, term and bytes."""
    found = [
        {**row[[*AXES, "status", "reason"]], "term": name, "bytes": count}
        for _, row in _with_gradients(rows).iterrows()
        for name, count in saved_terms(_workload(row)).items()
    ]
    return pd.DataFrame(found, columns=[*AXES, "status", "reason", "term", "bytes"])


def _with_gradients(rows: pd.DataFrame) -> pd.DataFrame:
    found = of_kind(rows, "saved")
    return found[found["mode"] != "inference"]


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
    found = _with_gradients(rows)
    if found.empty:
        return {}
    sums = pd.Series({index: sum(saved_terms(_workload(row)).values()) for index, row in found.iterrows()})
    errors = (sums / found["activations_bytes"] - 1).abs()
    return {"cells": len(found), "largest_error": errors.max(), "exact": bool(errors.max() < TOLERANCE / 10)}


def out_of_memory(rows: pd.DataFrame, device_type: str) -> list[dict]:
    """Give, for each cell that ran out of memory, the predicted peak, and what its reason says besides."""
    failed = rows[rows["status"] == "oom"].drop_duplicates(AXES).assign(device_type=device_type)
    return [
        {
            "cell": row[AXES].to_dict(),
            "bytes": max(moment.total_bytes for moment in _moments(row).values()),
            "besides": row["reason"].partition("; ")[2],
        }
        for _, row in failed.iterrows()
    ]


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
