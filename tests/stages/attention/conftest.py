"""Synthetic attention tables from a simple cost model: a launch, and memory traffic that grows with length squared."""

import itertools

import numpy as np
import pandas as pd
import pytest

from pipeline.formulas import attention
from pipeline.formulas.attention import Shape

from ..sections import as_read

GB = 1e9
FIGURES = ["n", "median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms", "rel_error", "samples_ms"]
MEMORY = ["saved_bytes", "before_backward_bytes", "peak_bytes", "workspace_bytes"]


def row(rng, head_dim, seq_len, mode, phase, clock, gpu):
    shape = Shape(8, 1, seq_len, head_dim, False)
    speed = 4.8e12 if gpu else 2e10
    traffic = shape.scores * 4 * (6 if mode == "eager" else 3) * (1 if phase == "forward" else 2.5)
    typical = (0.1 if mode == "eager" else 0.15) + traffic / speed * 1e3 * (1 + head_dim / 200)
    samples = typical * (1 + 0.01 * rng.standard_normal(100))
    measured = {
        "head_dim": head_dim,
        "seq_len": seq_len,
        "setting_batch_size": 8,
        "setting_is_causal": False,
        "setting_passes": 100,
        "setting_warmup_passes": 5,
        "mode": mode,
        "phase": phase,
        "clock": clock,
        "status": "ok",
        "reason": np.nan,
        "n": len(samples),
        "median_ms": np.median(samples),
        "q1_ms": np.quantile(samples, 0.25),
        "q3_ms": np.quantile(samples, 0.75),
        "mean_ms": samples.mean(),
        "std_ms": samples.std(ddof=1),
        "min_ms": samples.min(),
        "max_ms": samples.max(),
        "rel_error": 0.002,
        "saved_bytes": attention.saved_bytes(shape, 4),
        "model_saved_bytes": attention.saved_bytes(shape, 4),
        "model_before_backward_bytes": attention.before_backward_bytes(shape, 4),
        "model_peak_bytes": attention.peak_bytes(shape, 4, "cuda" if gpu else "cpu"),
        "device_type": "cuda" if gpu else "cpu",
        "memory_bytes": 150.1 * GB if gpu else 25 * GB,
        "samples_ms": samples.tolist(),
        "machine": "NVIDIA H200" if gpu else "AMD EPYC",
        "torch": "2.11.0",
    }
    if gpu:
        workspace = 33.6e6
        measured["workspace_bytes"] = workspace
        measured["before_backward_bytes"] = attention.before_backward_bytes(shape, 4) + workspace
        measured["peak_bytes"] = attention.peak_bytes(shape, 4, "cuda") * (1 if mode == "eager" else 0.7) + workspace
    return measured


def with_outcome(measured, status, reason):
    blank = {name: np.nan for name in [*FIGURES, *MEMORY] if name in measured}
    return measured | blank | {"status": status, "reason": reason}


def table(head_dim, lengths, gpu, seed, outcomes):
    rng = np.random.default_rng(seed + head_dim)
    lines = []
    clocks = ("host", "cuda_events") if gpu else ("host",)
    for length, mode, phase in itertools.product(lengths, ("eager", "compiled"), ("forward", "backward")):
        outcome = outcomes(length, mode)
        if outcome:
            lines.append(with_outcome(row(rng, head_dim, length, mode, phase, "host", gpu), *outcome))
        else:
            lines += [row(rng, head_dim, length, mode, phase, clock, gpu) for clock in clocks]
    return pd.DataFrame(lines)


def gpu_outcome(length, _mode):
    return ("oom", "CUDA out of memory. Tried to allocate 128.00 GiB. GPU 0 is full.") if length == 65536 else None


def no_compiler(_length, mode):
    return ("skipped", "torch.compile needs a C++ compiler, none found") if mode == "compiled" else None


def h200(seed=0):
    lengths = (256, 1024, 4096, 8192, 16384)
    longer = {64: (*lengths, 65536)}
    return {d: table(d, longer.get(d, lengths), True, seed, gpu_outcome) for d in (16, 32, 64, 128)}


MACHINES = {
    "h200": h200,
    "laptop": lambda seed=0: {64: table(64, (128, 512, 1024), False, seed, lambda *_: None)},
    "smoke": lambda seed=0: {16: table(16, (32,), False, seed, no_compiler)},
}


@pytest.fixture(scope="session")
def make_rows():
    """Make all rows of a machine by its name (h200, laptop or smoke), as a section gets them."""

    def make(name, seed=0):
        return as_read("attention", pd.concat(MACHINES[name](seed).values(), ignore_index=True))

    return make
