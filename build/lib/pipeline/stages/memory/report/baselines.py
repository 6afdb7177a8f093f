"""Others' peaks beside ours, where model, context length and precision are the same."""

import pandas as pd

from pipeline.report import published
from pipeline.stages.memory.report.facts import Recording, recordings

PRECISIONS = {"fp32": "fp32", "bf16_autocast": "bf16", "mixed_not_named": "bf16"}
KEYS = ["size", "context_length", "precision"]
MODES = ("forward", "train_step")


def pairs(rows: pd.DataFrame) -> pd.DataFrame:
    """Pair others' peaks of a forward pass or a training step with ours, one row per reading of theirs.

    Returns what, unit, theirs, ours, write_up and note. Precision that a source calls mixed stands beside our bf16.
    """
    theirs = published.load("memory")
    theirs = theirs[(theirs["quantity"] == "peak") & theirs["mode"].isin(MODES) & theirs["peak_gb"].notna()]
    theirs = theirs[theirs["context_length"].notna()]
    theirs = theirs.assign(
        size=theirs["model"],
        context_length=theirs["context_length"].astype(int),
        is_assumed=theirs["precision"] == "mixed_not_named",
        precision=theirs["precision"].map(PRECISIONS),
    )
    found = [
        (one.cell.size, one.cell.context_length, one.cell.precision, *reading)
        for one in recordings(rows)
        if one.plain and one.measured
        for reading in _readings(one)
    ]
    ours = pd.DataFrame(found, columns=[*KEYS, "mode", "reading", "ours"])
    paired = theirs.merge(ours, on=[*KEYS, "mode"])
    names = paired["mode"].str.replace("_", " ") + " (" + paired["reading"] + "), " + paired["size"]
    names += ", " + paired["precision"] + ", context " + paired["context_length"].astype(str)
    assumed = paired["is_assumed"].map({True: "precision is called mixed, taken as bf16; ", False: ""})
    return paired.assign(
        what="peak of a " + names,
        unit="GB",
        theirs=paired["peak_gb"],
        note=(assumed + paired["note"].fillna("")).str.removesuffix("; "),
    )


def _readings(one: Recording) -> list[tuple[str, str, float]]:
    """Return what a source can mean by a forward pass or a step, for most do not say: the mode, which one, its GB."""
    if one.cell.mode != "train_step":
        gradients = "with gradients" if one.cell.mode == "forward" else "no gradients"
        return [("forward", gradients, one.peak.total_bytes / 1e9)]
    first, later = max(peak.total_bytes for peak in one.peaks if peak.step == 1), one.peak.total_bytes
    steps = {"first step": first, "later step": later} if first != later else {"any step": later}
    return [("train_step", which, size / 1e9) for which, size in steps.items()]
