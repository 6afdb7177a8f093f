"""Synthetic ddp results from a simple cost model, and one real cell, measured once."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.instruments.profilers.collective_traffic import Collective
from pipeline.instruments.profilers.lanes import Lanes
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.weight_differences import Differences
from pipeline.stages.ddp.cell import Cell, Settings
from pipeline.stages.ddp.measure import EXPERIMENT, measure
from pipeline.ways.measure import rows_of
from pipeline.ways.way import Result

from ...records import rows_on_gloo, skipped_rows

H200 = "NVIDIA H200"
GRADIENT_BYTES, PARAMETERS = 7.99e9, 435
CALL_S, BANDWIDTH = 40e-6, 320e9
FORWARD_MS, OPTIMIZER_MS = 40.0, 36.0
BACKWARD_MS = {"bf16": 86.0, "fp32": 250.0}
TINY = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)


def bucket_count(way):
    if way.name in ("naive", "overlap"):
        return PARAMETERS
    if way.name in ("flat", "none"):
        return int(way.name == "flat")
    return max(1, min(PARAMETERS, round(GRADIENT_BYTES / (way.columns["bucket_size_mb"] * 2**20))))


def left_over_ms(way, backward_ms):
    """What is left of the communication after backward."""
    count = bucket_count(way)
    if count == 0:
        return 0.0
    backward_s = (way.name not in ("naive", "flat")) * backward_ms / 1e3
    ends_s = 0.0  # of a bucket's transfer, which waits for the bucket and for the transfer before
    for number in range(1, count + 1):
        ends_s = max(backward_s * number / count, ends_s) + CALL_S + GRADIENT_BYTES / count / BANDWIDTH
    return 1e3 * (ends_s - backward_s)


def result_of(rng, way, precision, on_gpu):
    backward_ms, rest_ms = BACKWARD_MS[precision], left_over_ms(way, BACKWARD_MS[precision])
    own_phase = way.name not in ("none", "torch")
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
        memory={"peak": 41e9} if on_gpu else {},
        parameter_bytes=[int(GRADIENT_BYTES)],
        collectives=all_reduces(bucket_count(way)),
        differences=Differences(5.0, "w", 0.02, 1.1, "w") if way.name == "none" else Differences(0.0, "", 0.0, 0.0),
        lanes=None if way.name == "none" else lanes_of(way, backward_ms, rest_ms),
    )


def all_reduces(count):
    """So many that carry all gradients."""
    sizes = np.diff(np.linspace(0, GRADIENT_BYTES, count + 1).astype(int)) if count else []
    return [Collective("allreduce", int(size), torch.float32) for size in sizes]


def lanes_of(way, backward_ms, rest_ms):
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
    for way in EXPERIMENT.ways:
        result = result_of(rng, way, cell.precision, on_gpu)
        if way.name in oom:
            result = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 7.44 GiB"}
        rows += rows_of(EXPERIMENT, way, result, cell, "nccl" if on_gpu else "gloo")
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
    return as_table(cell, Settings(), skipped_rows(cell), H200)


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """The folder of what the real cell keeps."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def smoke_rows(kept):
    """A real cell on two processes of this machine, without its GPUs."""
    return rows_on_gloo(partial(measure, files_dir=kept), TINY, SMOKE)


@pytest.fixture(scope="session")
def smoke(as_table, smoke_rows):
    """The real cell's table."""
    return as_table(TINY, SMOKE, smoke_rows, "AMD EPYC 7763")


@pytest.fixture(scope="session")
def allreduce():
    """All-reduces of two ranks with the cost from which the synthetic steps were made."""
    sizes = [1e6, 1e7, 1e8, 1e9]
    shared = {"world_size": 2, "nodes": 1, "impl": "torch", "placement": "in_place", "clock": "host", "status": "ok"}
    shared |= {"collective": "all_reduce", "dtype": "fp32"}
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
