import time
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.ddp import ranks
from pipeline.stages.ddp.cell import VARIANTS, Cell, Settings

CELL = Cell(size="tiny", batch_size_per_rank=1, context_length=8)
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=2)
ONE_OF_EACH = [variant for variant in VARIANTS if variant.bucket_size_mb in (None, 1)]
A_MOMENT_S = 30.0


def still_there(storages):
    """Count those not freed; a thread of gloo's may hold the tensor of its last collective for a moment longer."""
    deadline = time.monotonic() + A_MOMENT_S
    while not all(storage.expired() for storage in storages) and time.monotonic() < deadline:
        time.sleep(0.01)
    return sum(not storage.expired() for storage in storages)


def alive_at_each_build(context):
    """Count the parameters of the turn before that are still there when a turn builds its own."""
    former, alive = [], []

    def build(*args):
        alive.append(still_there(former))
        step = build_step(*args)
        former[:] = [StorageWeakRef(weight.untyped_storage()) for weight in step.model.parameters()]
        return step

    build_step = ranks.build_step
    with mock.patch.object(ranks, "build_step", build):
        ranks.measure_variants(context, CELL, SETTINGS, ONE_OF_EACH)
    return alive


def test_the_model_of_a_turn_is_gone_when_the_next_is_built():
    alive, _ = run_ranks(alive_at_each_build, 2, backend="gloo")
    assert len(alive) > 2 * len(ONE_OF_EACH)
    assert not any(alive)


@pytest.mark.gpu
def test_on_gpus_it_is_gone_too():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    alive, _ = run_ranks(alive_at_each_build, 2, backend="nccl", device_type="cuda")
    assert not any(alive)


def allocated_when_turns_begin(context):
    """Return the bytes that are allocated when a variant's first turn has made room for itself."""
    allocated = []

    def begin_anew(device):
        begin(device)
        allocated.append(torch.cuda.memory_allocated(device))

    begin = ranks.begin_anew
    with mock.patch.object(ranks, "begin_anew", begin_anew):
        ranks.measure_variants(context, replace(CELL, size="small"), SETTINGS, ONE_OF_EACH)
    return allocated


@pytest.mark.gpu
def test_what_the_collectives_of_a_turn_carried_does_not_count_for_the_next():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    for allocated in run_ranks(allocated_when_turns_begin, 2, backend="nccl", device_type="cuda"):
        after_the_first = allocated[1:]  # the first turn leaves workspaces and the weights to compare with
        assert max(after_the_first) - min(after_the_first) < 2**20
