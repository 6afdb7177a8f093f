"""Synthetic timing tables from a simple cost model: launches by layer, work by parameters and precision."""

import itertools

import numpy as np
import pandas as pd
import pytest

from ..sections import as_read, made_once

SIZES = {  # parameters, layers
    "nano": (1e6, 2),
    "micro": (5e6, 4),
    "small": (129e6, 12),
    "medium": (423e6, 24),
    "large": (969e6, 36),
    "xl": (1998e6, 48),
    "2.7B": (3407e6, 32),
}
SHARES = {"forward": 1.0, "backward": 2.0, "optimizer": 0.4, "train_step": 3.4}
GPU = {"fp32": 45.0, "tf32": 260.0, "bf16": 420.0}  # reached TFLOP/s
PEAK = {"fp32": 67.0, "tf32": 494.5, "bf16": 989.5}
FIRST_STEPS = {0: (25.0, 1.6, 1.1), 1: (1.5, 1.1), 2: (1.08,), 5: ()}  # of the first steps after w warm-ups


def cost_ms(size, context, precision, part, mode, gpu):
    parameters, layers = SIZES[size]
    tokens = 4 * context
    rate = GPU[precision] * 1e12 if gpu else 2e11
    work = 2 * parameters * tokens * (1 + context / 4000) / rate * 1e3
    launches = layers * 0.25 * (0.5 if mode == "compiled" else 1)
    fused = 0.9 if mode == "compiled" else 1
    return SHARES[part] * max(launches, work * fused + 0.2 * launches)


def row(rng, machine, precision, size, context, warmup, mode, part, clock, gpu):
    typical = cost_ms(size, context, precision, part, mode, gpu)
    samples = typical * (1 + 0.01 * rng.standard_normal(10)) * (1 if clock == "host" else 0.985)
    # Whole steps are measured after the phases, when the process is warm.
    first = () if part == "train_step" else FIRST_STEPS[warmup]
    samples[: len(first)] *= first
    if part == "compile":
        samples = np.array([typical])
    flops = 6 * SIZES[size][0] * 4 * context if part == "train_step" else np.nan
    tflops = flops / np.median(samples) / 1e9
    return {
        "precision": precision,
        "size": size,
        "context_length": context,
        "warmup_steps": warmup,
        "mode": mode,
        "repeat": 1,
        "batch_size": 4,
        "setting_vocab_size": 10_000,
        "setting_steps": 10,
        "setting_max_steps": 50,
        "setting_budget_s": 4.0,
        "phase": part,
        "clock": clock,
        "status": "ok",
        "reason": np.nan,
        "n": len(samples),
        "median_ms": np.median(samples),
        "q1_ms": np.quantile(samples, 0.25),
        "q3_ms": np.quantile(samples, 0.75),
        "mean_ms": samples.mean(),
        "std_ms": samples.std(ddof=1) if len(samples) > 1 else np.nan,
        "min_ms": samples.min(),
        "max_ms": samples.max(),
        "rel_error": 0.003,
        "tokens_per_s": 4 * context / np.median(samples) * 1e3 if part == "train_step" else np.nan,
        "model_tflops_per_s": tflops,
        "peak_tflops_per_s": PEAK[precision] if gpu else np.nan,
        "peak_source": "datasheet" if gpu else np.nan,
        "mfu_pct": 100 * tflops / PEAK[precision] if gpu else np.nan,
        "peak_bytes": 16 * SIZES[size][0] + 3e7 * context if gpu else np.nan,
        "samples_ms": [float(sample) for sample in samples],
        "machine": machine,
        "torch": "2.11.0",
        "triton": "3.6.0" if gpu else np.nan,
        "cuda": "13.0" if gpu else np.nan,
        "python": "3.12.3",
    }


FIGURES = [
    *("median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms", "rel_error", "n"),
    *("tokens_per_s", "model_tflops_per_s", "mfu_pct", "peak_bytes", "samples_ms"),
]


def with_outcome(found, status, reason):
    figures = {} if status == "unstable" else dict.fromkeys(FIGURES, np.nan)
    return found | figures | {"status": status, "reason": reason}


def cell(rng, machine, precision, size, context, warmup=5, mode="eager", gpu=True, outcome=None):
    axes = (rng, machine, precision, size, context, warmup, mode)
    clocks = ("host", "cuda_events") if gpu else ("host",)
    rows = [row(*axes, part, clock, gpu) for part, clock in itertools.product(SHARES, clocks)]
    if mode == "compiled":
        first = row(*axes[:-1], "eager", "train_step", "host", gpu)
        seconds_ms = 2e4 + 400 * SIZES[size][1]
        rows.append(
            first
            | {"mode": mode, "phase": "compile", "n": 1, "std_ms": np.nan, "samples_ms": [seconds_ms]}
            | dict.fromkeys(["median_ms", "q1_ms", "q3_ms", "mean_ms", "min_ms", "max_ms"], seconds_ms)
            | dict.fromkeys(["tokens_per_s", "model_tflops_per_s", "mfu_pct"], np.nan)
        )
    return [with_outcome(found, *outcome) for found in rows] if outcome else rows


def table(cells):
    return pd.DataFrame(list(itertools.chain.from_iterable(cells)))


def h200(seed=0):
    rng = np.random.default_rng(seed)
    sizes, contexts = ("2.7B", "large", "medium", "small", "xl"), (128, 256, 512, 1024)
    tables = {}
    for precision in ("bf16", "fp32", "tf32"):
        cells = []
        for size, context in itertools.product(sizes, contexts):
            too_large = context == 1024 and size in ("xl", "2.7B") and precision != "bf16"
            outcome = ("oom", "CUDA out of memory") if too_large else None
            if (precision, size, context) == ("bf16", "small", 128):
                outcome = ("unstable", "noise above its limit")
            cells.append(cell(rng, "NVIDIA H200", precision, size, context, outcome=outcome))
        for size, warmup in itertools.product(sizes, (0, 1, 2)):
            cells.append(cell(rng, "NVIDIA H200", precision, size, 256, warmup=warmup))
        for size in sizes:
            cells.append(cell(rng, "NVIDIA H200", precision, size, 256, mode="compiled"))
        tables[precision] = table(cells)
    return tables


def laptop(seed=0):
    rng = np.random.default_rng(seed)
    machine = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"
    no_gpu = ("skipped", "no CUDA GPU")
    tables = {}
    for precision in ("fp32", "bf16", "tf32"):
        outcome = no_gpu if precision == "tf32" else None
        axes = {"gpu": False, "outcome": outcome}
        grid = list(itertools.product(("micro", "nano"), (128, 256)))
        tables[precision] = table(
            [
                *(cell(rng, machine, precision, *where, **axes) for where in grid),
                *(cell(rng, machine, precision, "nano", 256, warmup=warmup, **axes) for warmup in (0, 1, 2)),
                cell(rng, machine, precision, "nano", 256, mode="compiled", **axes),
            ]
        )
    return tables


def smoke(seed=0):
    rng = np.random.default_rng(seed)
    return {"fp32": table([cell(rng, "AMD EPYC 7763", "fp32", "nano", 32, gpu=False)])}


MACHINES = {"h200": h200, "laptop": laptop, "smoke": smoke}


@pytest.fixture(scope="session")
def make_rows():
    """Make all rows of a machine by its name (h200, laptop or smoke), as a section gets them."""

    def make(name, seed=0):
        return as_read("timing", pd.concat(MACHINES[name](seed).values(), ignore_index=True))

    return made_once(make)
