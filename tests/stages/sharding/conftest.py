"""Synthetic sharding results of an xl model on GPUs, and one real cell, measured once."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch

from pipeline.instruments.profilers.collective_traffic import Collective
from pipeline.instruments.sampling.step_timing import Sampling, Timings
from pipeline.instruments.sampling.weight_differences import Differences
from pipeline.stages.sharding.cell import Cell, Settings
from pipeline.stages.sharding.measure import EXPERIMENT, measure
from pipeline.ways.measure import rows_of
from pipeline.ways.way import Result

from ...records import rows_on_gloo, skipped_rows

H200 = "NVIDIA H200"
SIZES = [64_000_000] * 2 + [40_960_000] * 144 + [10_240_000] * 192 + [6_400] * 97
TOTAL = sum(SIZES)
ACTIVATIONS = 12e9
ROUNDING = 1.01  # of the allocator's blocks
OPTIMIZER_MS = {"adamw": 36.0, "sharded": 32.0, "torch_zero": 34.0}
TINY = Cell(size="tiny", batch_size_per_rank=1, context_length=16)
SMOKE = Settings(vocab_size=300, warmup_steps=2, steps=5, rounds=1)


def memory_of(impl, world_size):
    """Bytes by moment and kind, as the formulas would have them, but for the allocator's rounding."""
    share = TOTAL if impl == "adamw" else TOTAL / world_size
    memory = {}
    for moment in ("initialised", "first_before_step", "first_after_step", "before_step", "after_step"):
        state = 0 if moment in ("initialised", "first_before_step") else 2 * share
        gradients = 0 if moment == "initialised" else TOTAL
        held = TOTAL + gradients + state
        extra = {"initialised": 0, "first_before_step": ACTIVATIONS, "before_step": ACTIVATIONS}.get(moment, share)
        kinds = {"parameters": TOTAL, "gradients": gradients, "optimizer_state": state}
        asked = {"requested": held, "requested_peak": held + extra}
        given = {"allocated": ROUNDING * held, "peak": ROUNDING * (held + extra)}
        memory |= {(moment, kind): float(size) for kind, size in (kinds | asked | given).items()}
    return memory


def result_of(rng, impl, world_size):
    phases = {"forward": 40.0, "backward": 86.0, "communication": 0.5, "optimizer": OPTIMIZER_MS[impl]}
    samples = {name: ms * (1 + 0.003 * rng.standard_normal(20)) for name, ms in phases.items()}
    timings = {name: Timings([], list(times)) for name, times in samples.items()}
    timings["train_step"] = Timings(list(sum(samples.values()) + 0.1), list(sum(samples.values())))
    broadcasts = [Collective("broadcast", size, torch.float32) for size in SIZES] if impl != "adamw" else []
    return Result(
        samplings=[Sampling(timings, [], [])],
        memory=memory_of(impl, world_size),
        collectives=[Collective("allreduce", size, torch.float32) for size in SIZES] + broadcasts,
        parameter_bytes=SIZES,
        differences=Differences(0.0, "", 0.0, 0.0),
    )


def cell_rows(rng, cell, oom=()):
    rows = []
    for way in EXPERIMENT.ways:
        result = result_of(rng, way.name, cell.world_size)
        if way.name in oom:
            result = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 7.44 GiB"}
        rows += rows_of(EXPERIMENT, way, result, cell, "nccl")
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
    """GPUs whose memory holds the state only when it is shared out."""
    cell = Cell(precision="fp32")
    rows = cell_rows(np.random.default_rng(1), cell, oom=("adamw",))
    return as_table(cell, Settings(), rows, "NVIDIA A100-SXM4-40GB")


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
