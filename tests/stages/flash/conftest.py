"""Synthetic flash tables from a simple cost model: a launch, and work at each implementation's rate."""

import itertools

import numpy as np
import pandas as pd
import pytest

from pipeline.formulas.attention import Shape, pass_flops
from pipeline.stages.flash.cell import PHASES

from ..sections import as_read, made_once

QUANTITIES = {"forward": ("output",), "backward": ("dq", "dk", "dv"), "forward_backward": ()}
# launches, TFLOP/s reached in bf16 and in fp32, relative error over eager's
GPU_IMPLS = {
    "triton": (2, 440.0, 120.0, 1.1),
    "tiled": (200, 20.0, 15.0, 1.0),
    "eager": (8, 40.0, 20.0, 1.0),
    "compiled_eager": (4, 80.0, 25.0, 1.0),
    "sdpa_flash": (2, 280.0, None, 1.2),
    "sdpa_cudnn": (2, 430.0, None, 1.2),
    "sdpa_efficient": (2, 200.0, 60.0, 1.1),
    "flex": (2, 350.0, 30.0, 1.3),
}
CPU_IMPLS = {"tiled": (50, 0.1, 0.1, 1.0), "eager": (8, 0.15, 0.15, 1.0), "sdpa": (3, 0.3, 0.3, 0.9)}
SKIPPED_ON_CPU = ("triton", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "flex")
NO_FP32 = "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: float instead."
EAGER_ERROR = {"bf16": 3e-3, "fp16": 4e-4, "fp32": 2e-7}
PEAK = {"bf16": (989.4, "bf16"), "fp16": (989.4, "fp16"), "fp32": (164.9, "3×TF32")}
# Back to back over in turn.
HELD = {"triton": 1.05, "sdpa_cudnn": 1.11}
STATISTICS = {"clock", "n", "median_ms", "q1_ms", "q3_ms", "mean_ms", "std_ms", "min_ms", "max_ms", "rel_error"}
RATES = {"tflops_per_s", "peak_share_pct", "exposed_samples", "median_call_ms", "median_enqueue_ms"}
RATES |= {"samples_ms", "extra_bytes", "sustained_ms", "sustained_tflops_per_s", "sustained_sm_clock_mhz"}


def row(rng, dtype, shape, impl, phase, gpu):
    launches, *rates, over_eager = (GPU_IMPLS if gpu else CPU_IMPLS)[impl]
    rate = rates[dtype == "fp32"] or 1.0
    launch_ms = 0.004 if gpu else 0.02
    flops = pass_flops(shape, phase)
    typical = launches * launch_ms * (2 if phase == "forward_backward" else 1) + flops / rate / 1e9
    samples = typical * (1 + 0.01 * rng.standard_normal(12))
    median = float(np.median(samples))
    element_bytes = 4 if dtype == "fp32" else 2
    quadratic = 3 * shape.scores * element_bytes if "eager" in impl else 0
    peak, of = PEAK[dtype] if gpu else (0.2, dtype)
    measured = {
        "dtype": dtype,
        "head_dim": shape.head_dim,
        "seq_len": shape.seq_len,
        "batch_size": shape.batch_size,
        "num_heads": shape.num_heads,
        "query_heads_per_kv_head": shape.query_heads_per_kv_head,
        "is_causal": shape.is_causal,
        "repeat": 1,
        "setting_min_samples": 10,
        "impl": impl,
        "phase": phase,
        "clock": "device" if gpu else "host",
        "status": "ok",
        "reason": np.nan,
        "n": len(samples),
        "median_ms": median,
        "q1_ms": np.quantile(samples, 0.25),
        "q3_ms": np.quantile(samples, 0.75),
        "mean_ms": samples.mean(),
        "std_ms": samples.std(ddof=1),
        "min_ms": samples.min(),
        "max_ms": samples.max(),
        "rel_error": 0.003,
        "tflops_per_s": flops / median / 1e9,
        "peak_share_pct": 100 * flops / median / 1e9 / peak,
        "peak_tflops_per_s": peak,
        "peak_source": "datasheet" if gpu else "measured",
        "peak_of": of,
        "exposed_samples": 12 if impl == "tiled" and gpu else 0,
        "first_call_ms": 500.0,
        "samples_ms": samples.tolist(),
        "machine": "NVIDIA H200" if gpu else "AMD EPYC",
        "torch": "2.11.0",
    }
    for quantity in QUANTITIES[phase]:
        measured[f"{quantity}_rel_error"] = EAGER_ERROR[dtype] * over_eager
        measured[f"{quantity}_max_error"] = 5 * EAGER_ERROR[dtype] * over_eager
    if gpu:
        measured["extra_bytes"] = 8 * shape.vectors * element_bytes + quadratic
        measured["median_call_ms"] = typical + 0.03 * (1 if impl == "triton" else 2)
        measured["median_enqueue_ms"] = 0.02 * launches
        measured["sdpa_choice"] = "sdpa_efficient" if dtype == "fp32" else "sdpa_cudnn"
    if gpu and impl in HELD and shape.num_heads > 1 and phase != "backward":
        held = {"sustained_ms": HELD[impl] * median, "sustained_tflops_per_s": flops / median / 1e9 / HELD[impl]}
        measured |= held | {"sustained_sm_clock_mhz": 1700.0}
    return measured


def with_outcome(measured, status, reason):
    figures = {} if status == "unstable" else dict.fromkeys(STATISTICS | RATES, np.nan)
    errors = {} if status == "unstable" else {name: np.nan for name in measured if name.endswith("_error")}
    return measured | figures | errors | {"status": status, "reason": reason}


def gpu_outcome(dtype, shape, impl):
    if dtype == "fp32" and impl in ("sdpa_flash", "sdpa_cudnn"):
        return ("skipped", NO_FP32)
    if impl in ("tiled", "sdpa_efficient") and shape.has_shared_keys:
        return ("skipped", "needs as many heads of keys as of queries")
    if impl == "tiled" and shape.seq_len >= 65536:
        return ("skipped", "one forward call takes 9.3 s, above the limit of 1 s")
    if "eager" in impl and shape.scores >= 2**32:
        return ("oom", "CUDA out of memory. Tried to allocate 16.00 GiB.")
    if (dtype, shape.seq_len, shape.head_dim, impl) == ("bf16", 128, 16, "eager"):
        return ("unstable", "median known to 7.0% only")
    return None


def h200(seed=0):
    rng = np.random.default_rng(seed)
    grid = [Shape(1, 1, length, head_dim, True) for head_dim in (16, 64) for length in (128, 1024, 8192, 16384, 65536)]
    shapes_of = {
        "bf16": [
            *grid,
            *(Shape(1, 16, 16384, 64, True), Shape(1, 16, 16384, 128, True), Shape(4, 16, 4096, 64, False)),
            Shape(1, 32, 8192, 128, True, 4),
        ],
        "fp16": [Shape(4, 16, 4096, 64, False)],
        "fp32": grid,
    }
    tables = {}
    for dtype, shapes in shapes_of.items():
        lines = []
        for shape, impl, phase in itertools.product(shapes, GPU_IMPLS, PHASES):
            measured, outcome = row(rng, dtype, shape, impl, phase, gpu=True), gpu_outcome(dtype, shape, impl)
            lines.append(with_outcome(measured, *outcome) if outcome else measured)
        tables[dtype] = pd.DataFrame(lines)
    return tables


def cpu(seed, lengths, dtypes):
    rng = np.random.default_rng(seed)
    tables = {}
    for dtype in dtypes:
        lines = []
        for length, phase in itertools.product(lengths, PHASES):
            shape = Shape(1, 1, length, 64, True)
            lines += [row(rng, dtype, shape, impl, phase, gpu=False) for impl in CPU_IMPLS]
            like = row(rng, dtype, shape, "sdpa", phase, gpu=False)
            lines += [with_outcome(like | {"impl": impl}, "skipped", "needs a CUDA GPU") for impl in SKIPPED_ON_CPU]
            lines.append(
                with_outcome(like | {"impl": "compiled_eager"}, "skipped", "torch.compile needs a C++ compiler")
            )
        tables[dtype] = pd.DataFrame(lines)
    return tables


MACHINES = {
    "h200": h200,
    "laptop": lambda seed: cpu(seed, (256, 512, 1024), ("bf16", "fp32")),
    "smoke": lambda seed: cpu(seed, (64,), ("fp32",)),
}


@pytest.fixture(scope="session")
def make_rows():
    """Make all rows of a machine by its name (h200, laptop or smoke), as a section gets them."""

    def make(name, seed=0):
        return as_read("flash", pd.concat(MACHINES[name](seed).values(), ignore_index=True))

    return made_once(make)
