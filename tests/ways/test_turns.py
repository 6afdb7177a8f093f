import importlib
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.parallel.processes.starting import run_ranks
from pipeline.ways import notes
from pipeline.ways.cell import RanksCell, RanksSettings
from pipeline.ways.turns import measure_in_turn

from ..parallel.freed import still_there
from ..ranks import on_ranks

CELL = RanksCell(size="tiny", batch_size_per_rank=1, context_length=8)
SETTINGS = RanksSettings(vocab_size=100, warmup_steps=2, steps=5, rounds=2)
STAGES = ("ddp", "sharding", "fsdp")


def experiment_of(stage):
    """Return a stage's experiment, with one bucket size for each way that has several."""
    experiment = importlib.import_module(f"pipeline.stages.{stage}.measure").EXPERIMENT
    return replace(experiment, ways=[way for way in experiment.ways if way.columns.get("bucket_size_mb") in (None, 1)])


def storage(tensor):
    return StorageWeakRef((tensor.to_local() if hasattr(tensor, "to_local") else tensor).untyped_storage())


def alive_at_each_build(context, stage):
    """Count the last turn's parameters, gradients and state that are still there when a turn builds its own."""
    former, alive = [], []

    def noting(build, plain):
        alive.append(still_there(former))
        step = build(plain)
        former[:] = [storage(weight) for weight in step.model.parameters()]
        step.optimizer.register_step_post_hook(note_state)
        return step

    def note_state(optimizer, *_):
        tensors = [tensor for state in optimizer.state.values() for tensor in state.values()]
        tensors += [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        former.extend(storage(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor))

    experiment = experiment_of(stage)
    ways = [replace(way, build=partial(noting, way.build)) for way in experiment.ways]
    measure_in_turn(context, CELL, replace(SETTINGS, warmup_steps=1, steps=1), ways, experiment)
    return alive, len(former)


@on_ranks(2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_turns_model_gradients_and_state_are_freed_before_the_next_is_built(context, stage):
    alive, noted = alive_at_each_build(context, stage)
    assert len(alive) >= 2 * len(experiment_of(stage).ways)
    assert noted > 0
    assert not any(alive)


@pytest.mark.gpu(count=2)
@pytest.mark.parametrize("stage", STAGES)
def test_a_turns_model_gradients_and_state_are_freed_on_gpus_too(stage):
    alive, _ = run_ranks(alive_at_each_build, 2, backend="nccl", device_type="cuda", args=(stage,))[0]
    assert not any(alive)


def allocated_when_turns_begin(context):
    """Return the bytes allocated after each way's first turn has made room."""
    allocated, experiment = [], experiment_of("ddp")

    def make_room(device):
        experiment.make_room(device)
        allocated.append(torch.cuda.memory_allocated(device))

    noting = replace(experiment, make_room=make_room)
    measure_in_turn(context, replace(CELL, size="small"), SETTINGS, experiment.ways, noting)
    return allocated


@pytest.mark.gpu(count=2)
def test_tensors_of_a_turns_collectives_do_not_count_for_the_next_turn():
    for allocated in run_ranks(allocated_when_turns_begin, 2, backend="nccl", device_type="cuda"):
        after_the_first = allocated[1:]  # the first turn leaves workspaces and the weights to compare with
        assert max(after_the_first) - min(after_the_first) < 2**20


@on_ranks(2)
def test_first_turns_make_room_and_note_later_ones_only_time_and_profiles_come_last(context):
    """Steps are counted by a hook of the optimizer."""
    events, experiment = [], experiment_of("sharding")

    def noting(way, plain):
        events.append(f"build {way.name}")
        step = way.build(plain)
        step.optimizer.register_step_post_hook(lambda *_: events.append("step"))
        return step

    noted = replace(
        experiment,
        first_turn=(notes.warm_up, lambda turn: events.append(f"note {turn.way.name}"), notes.time_steps),
        make_room=lambda _device: events.append("make room"),
    )
    captured = [replace(way, captured=True) for way in experiment.ways[:2]]
    ways = [replace(way, build=partial(noting, way)) for way in captured]
    results = measure_in_turn(context, CELL, SETTINGS, ways, noted)
    first, second = "adamw", "sharded"
    timed, warm = 5 * ["step"], 2 * ["step"]
    assert events == [
        *("make room", f"build {first}", *warm, f"note {first}", *timed),
        *("make room", f"build {second}", *warm, f"note {second}", *timed),
        *(f"build {second}", *warm, *timed),
        *(f"build {first}", *warm, *timed),
        *(f"build {first}", *warm, *2 * ["step"]),  # the capture runs two
        *(f"build {second}", *warm, *2 * ["step"]),
    ]
    for result in results:
        assert [len(sampling.timings["train_step"].host_ms) for sampling in result.samplings] == [5, 5]


@on_ranks(2)
def test_ranks_have_their_own_tokens_and_note_their_mean_loss(context):
    seen = []

    def note_own_loss(turn):
        seen.append((turn.step.tokens.clone(), turn.step.forward().detach()))
        turn.step.discard()

    experiment = replace(experiment_of("ddp"), first_turn=(note_own_loss, notes.note_loss))
    (result,) = measure_in_turn(context, CELL, replace(SETTINGS, rounds=1), experiment.ways[:1], experiment)
    by_rank = [None, None]
    dist.all_gather_object(by_rank, seen[0])
    (tokens, loss), (others_tokens, others_loss) = by_rank
    assert not torch.equal(tokens, others_tokens)
    assert result.loss == pytest.approx((loss + others_loss).item() / 2)
