"""Helpers that build small frames, so that tests state only what they are about."""

import pandas as pd

from pipeline.report.frame import fold

SAMPLES = 12


def samples(median_ms, spread=0.004):
    """Return evenly spaced samples around a median; spread: about their range, as a share of it."""
    return [median_ms * (1 + spread * (place - (SAMPLES - 1) / 2) / SAMPLES) for place in range(SAMPLES)]


def timed(name, median_ms, **columns):
    values = samples(median_ms)
    times = {"samples_ms": values, "median_ms": median_ms, "q1_ms": values[3], "q3_ms": values[8]}
    return failed(name, "ok", None) | times | {"setting_unstable_rel_error": 0.05, **columns}


def failed(name, status="oom", reason="CUDA out of memory", **columns):
    return {"name": name, "phase": "train_step", "status": status, "reason": reason, "cards": "a GPU", **columns}


def folded(*rows, keys=("name",)):
    return fold(pd.DataFrame(list(rows)), keys)


def repeated(name, medians_ms, **columns):
    return [timed(name, median, repeat=number, **columns) for number, median in enumerate(medians_ms, 1)]
