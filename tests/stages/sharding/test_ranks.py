import time
from unittest import mock

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.sharding import ranks
from pipeline.stages.sharding.cell import IMPLS, Cell, Settings

CELL = Cell(size="tiny", batch_size_per_rank=1, context_length=8)
SETTINGS = Settings(vocab_size=100, warmup_steps=2, steps=5, rounds=2)

A_MOMENT_S = 30.0


def still_there(storages):
    """Count those not freed; a thread of gloo's may hold the tensor of its last collective for a moment longer."""
    deadline = time.monotonic() + A_MOMENT_S
    while not all(storage.expired() for storage in storages) and time.monotonic() < deadline:
        time.sleep(0.01)
    return sum(not storage.expired() for storage in storages)


def alive_at_each_build(context):
    """Count parameters and optimizer state of the turn before that are still there when a turn builds its own."""
    former, alive = [], []

    def build(*args):
        alive.append(still_there(former))
        step = build_step(*args)
        former[:] = [StorageWeakRef(weight.untyped_storage()) for weight in step.model.parameters()]
        step.optimizer.register_step_post_hook(note_state)
        return step

    def note_state(optimizer, *_):
        tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
        former.extend(StorageWeakRef(tensor.untyped_storage()) for tensor in tensors)

    build_step = ranks._build_step
    with mock.patch.object(ranks, "_build_step", build):
        ranks.measure_optimizers(context, CELL, SETTINGS, IMPLS)
    return alive, len(former)


def test_the_model_and_state_of_a_turn_are_gone_when_the_next_is_built():
    alive, noted = run_ranks(alive_at_each_build, 2, backend="gloo")[0]
    assert len(alive) == 2 * len(IMPLS)
    assert noted > 0
    assert not any(alive)


@pytest.mark.gpu
def test_on_gpus_they_are_gone_too():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    alive, _ = run_ranks(alive_at_each_build, 2, backend="nccl", device_type="cuda")[0]
    assert not any(alive)
