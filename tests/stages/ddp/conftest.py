"""Synthetic ddp results from a simple cost model, and one real cell, measured once."""

import numpy as np
import pandas as pd
import pytest

from pipeline.instruments.profilers.lanes import Lanes
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.instruments.sampling.weight_differences import Differences
from pipeline.stages.ddp.cell import VARIANTS, Cell, Settings
from pipeline.stages.ddp.measure import measure, rows_of
from pipeline.stages.ddp.ranks import Result

from ...records import rows_read

H200 = "NVIDIA H200"
GRADIENT_BYTES, PARAMETERS = 7.99e9, 435
CALL_S, BANDWIDTH = 40e-6, 320e9
FORWARD_MS, OPTIMIZER_MS = 40.0, 36.0
BACKWARD_MS = {"bf16": 86.0, "fp32": 250.0}
TINY = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)


def bucket_count(variant):
    if variant.impl in ("naive", "overlap"):
        return PARAMETERS
    if variant.impl in ("flat", "none"):
        return int(variant.impl == "flat")
    return max(1, min(PARAMETERS, round(GRADIENT_BYTES / (variant.bucket_size_mb * 2**20))))


def left_over_ms(variant, backward_ms):
    """What is left of the communication after backward."""
    count = bucket_count(variant)
    if count == 0:
        return 0.0
    backward_s = (variant.impl not in ("naive", "flat")) * backward_ms / 1e3
    ends_s = 0.0  # of a bucket's transfer, which waits for the bucket and for the transfer before
    for number in range(1, count + 1):
        ends_s = max(backward_s * number / count, ends_s) + CALL_S + GRADIENT_BYTES / count / BANDWIDTH
    return 1e3 * (ends_s - backward_s)


def result_of(rng, variant, precision, on_gpu):
    backward_ms, rest_ms = BACKWARD_MS[precision], left_over_ms(variant, BACKWARD_MS[precision])
    own_phase = variant.impl not in ("none", "torch")
    phases = {
        "forward": FORWARD_MS,
        "backward": backward_ms + (0 if own_phase else rest_ms),
        **({"communication": rest_ms} if own_phase else {}),
        "optimizer": OPTIMIZER_MS,
    }
    samples = {name: ms * (1 + 0.003 * rng.standard_normal(20)) for name, ms in phases.items()}
    step_ms = sum(samples.values())
    timings = {
        name: Timings([], list(times)) if on_gpu else Timings(list(times), []) for name, times in samples.items()
    }
    timings["train_step"] = Timings(list(step_ms + 0.1), list(step_ms) if on_gpu else [])
    return Result(
        samplings=[Sampling(timings, [], [])],
        peak_bytes=int(41e9) if on_gpu else None,
        gradient_bytes=int(GRADIENT_BYTES),
        all_reduces=bucket_count(variant),
        all_reduce_bytes=int(GRADIENT_BYTES) if variant.impl != "none" else 0,
        differences=Differences(5.0, "w", 0.02, 1.1, "w") if variant.impl == "none" else Differences(0.0, "", 0.0, 0.0),
        lanes=None if variant.impl == "none" else lanes_of(variant, backward_ms, rest_ms),
    )


def lanes_of(variant, backward_ms, rest_ms):
    """Computation until backward ends and in the optimizer; transfers of all bytes that end when nothing is left."""
    backward_ends = FORWARD_MS + backward_ms
    transfer_ms = 1e3 * (GRADIENT_BYTES / BANDWIDTH)
    ends = backward_ends + rest_ms
    computation = [(0, backward_ends), (ends, ends + OPTIMIZER_MS)]
    communication = [(ends - transfer_ms, ends)]
    return Lanes(*(events(lane) for lane in (computation, communication)))


def events(intervals_ms):
    rows = [(1e3 * start, 1e3 * (end - start)) for start, end in intervals_ms]
    return pd.DataFrame(rows, columns=["start_us", "duration_us"])


def cell_rows(rng, cell, on_gpu=True, oom=()):
    rows = []
    for variant in VARIANTS:
        result = result_of(rng, variant, cell.precision, on_gpu)
        if variant.impl in oom:
            result = MemoryError("CUDA out of memory. Tried to allocate 7.44 GiB")
        rows += rows_of(variant, result, cell, "nccl" if on_gpu else "gloo")
    return rows


@pytest.fixture(scope="session")
def h200(as_table):
    """The paper scale on GPUs."""
    rng = np.random.default_rng(0)
    cells = [Cell(precision=name) for name in ("bf16", "fp32")]
    tables = [as_table(cell, Settings(), cell_rows(rng, cell), H200) for cell in cells]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="session")
def small_gpu(as_table):
    """GPUs with too little memory for the flat variant."""
    cell = Cell(precision="fp32")
    return as_table(cell, Settings(), cell_rows(np.random.default_rng(1), cell, oom=("flat",)), "NVIDIA A100-SXM4-40GB")


@pytest.fixture(scope="session")
def skipped(as_table):
    """A machine with one GPU."""
    cell = Cell(precision="bf16")
    reason = {"status": "skipped", "reason": "needs 2 GPUs, 1 present"}
    return as_table(cell, Settings(), [{**key, **reason} for key in cell.row_keys()], H200)


@pytest.fixture(scope="session")
def smoke_rows():
    """A real cell on two processes of this machine, without its GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.cells.on_ranks.gpu_count", lambda: 0)
        return rows_read(measure, TINY, SMOKE, Stopwatch())


@pytest.fixture(scope="session")
def smoke(as_table, smoke_rows):
    """The real cell's table."""
    return as_table(TINY, SMOKE, smoke_rows, "AMD EPYC 7763")


@pytest.fixture(scope="session")
def allreduce():
    """All-reduces of two ranks with the cost from which the synthetic steps were made."""
    sizes = [1e6, 1e7, 1e8, 1e9]
    shared = {"world_size": 2, "nodes": 1, "impl": "torch", "placement": "in_place", "clock": "host", "status": "ok"}
    return pd.DataFrame(
        [
            {**shared, "backend": backend, "timing": timing, "size_bytes": size, "median_ms": 1e3 * time_s(size)}
            for backend in ("nccl", "gloo")
            for timing in ("burst", "single")
            for size in sizes
        ]
    )


def time_s(size_bytes):
    return CALL_S + size_bytes / BANDWIDTH
