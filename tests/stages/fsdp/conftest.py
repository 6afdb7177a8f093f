"""Synthetic fsdp results of an xl model on GPUs, and one real cell, measured once."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.instruments.profilers.collective_traffic import Collective
from pipeline.instruments.profilers.gpu_busy import GpuBusy
from pipeline.instruments.profilers.lanes import Lanes
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.stages.fsdp import prediction
from pipeline.stages.fsdp.cell import FULLY_SHARDED, Cell, Settings
from pipeline.stages.fsdp.measure import EXPERIMENT, measure
from pipeline.ways.measure import rows_of
from pipeline.ways.way import Result

from ...records import rows_on_gloo, skipped_rows

H200 = "NVIDIA H200"
STEP_MS = {"none": 150, "ddp": 190, "ddp_sharded": 195, "fsdp": 160, "fsdp_layers": 300, "torch_fsdp": 270}
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)
SMALL = Cell(size="tiny", batch_size_per_rank=1, context_length=16)


def lanes_of(rng):
    computation = pd.DataFrame({"start_us": [0.0, 60e3], "duration_us": [50e3, 80e3]})
    gathers = {"name": "ncclDevKernel_AllGather_RING_LL", "start_us": 1e3, "duration_us": 49e3 + 5e3 * rng.random()}
    scatters = {"name": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "start_us": 60e3, "duration_us": 20e3}
    return Lanes(computation, pd.DataFrame([gathers, scatters]))


def result_of(rng, impl, cell):
    step_ms = STEP_MS[impl] * (1 + 0.003 * rng.standard_normal(20))
    ours = prediction.memory_bytes("fsdp" if impl == "torch_fsdp" else impl, cell, Settings.vocab_size)
    payloads = prediction.collective_bytes(impl, cell, Settings.vocab_size)
    timings = {"train_step": Timings(list(step_ms), list(step_ms))}
    timings |= {name: Timings([], list(step_ms / 3)) for name in ("forward", "backward", "optimizer")}
    return Result(
        samplings=[Sampling(timings, [], [])],
        memory={"optimizer_state": 12 * 10**9, "peak": 30 * 10**9} | ours,
        collectives=[Collective(name, size, torch.float32) for name, size in payloads.items() if size],
        loss=7.0 + 0.001 * rng.random(),
        busy=GpuBusy(100.0, 6000, 10.0, 200.0),
        lanes=lanes_of(rng) if impl in FULLY_SHARDED else None,
    )


def cell_rows(rng, cell, oom=()):
    rows = []
    for way in EXPERIMENT.ways:
        oom_row = {"status": "oom", "reason": "CUDA out of memory"}
        result = oom_row if way.name in oom else result_of(rng, way.name, cell)
        rows += rows_of(EXPERIMENT, way, result, cell, "nccl")
    return rows


@pytest.fixture(scope="session")
def h200(as_table):
    """Two precisions on GPUs."""
    rng = np.random.default_rng(0)
    cells = [Cell(precision=name) for name in ("bf16", "fp32")]
    tables = [as_table(cell, Settings(), cell_rows(rng, cell), H200) for cell in cells]
    return pd.concat(tables, ignore_index=True)


@pytest.fixture(scope="session")
def small_gpu(as_table):
    """GPUs whose memory holds the model only when everything is sharded."""
    cell = Cell(precision="fp32")
    rows = cell_rows(np.random.default_rng(1), cell, oom=("none", "ddp", "ddp_sharded"))
    return as_table(cell, Settings(), rows, "NVIDIA A100-SXM4-40GB")


@pytest.fixture(scope="session")
def skipped(as_table):
    """A machine with one GPU."""
    return as_table(Cell(), Settings(), skipped_rows(Cell()), H200)


@pytest.fixture(scope="session")
def kept(tmp_path_factory):
    """The folder of what the real cell keeps."""
    return tmp_path_factory.mktemp("kept")


@pytest.fixture(scope="session")
def smoke_rows(kept):
    """A real cell on two processes of this machine, without its GPUs."""
    return rows_on_gloo(partial(measure, files_dir=kept), SMALL, SMOKE)


@pytest.fixture(scope="session")
def smoke(as_table, smoke_rows):
    """The real cell's table."""
    return as_table(SMALL, SMOKE, smoke_rows, "AMD EPYC 7763")
