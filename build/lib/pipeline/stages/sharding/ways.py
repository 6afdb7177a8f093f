"""Training with each optimizer: how a rank's step gets it, and its memory at the moments of a step."""

from dataclasses import replace
from functools import partial

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.instruments.memory.training_kinds import device_bytes, kinds_bytes
from pipeline.instruments.sampling.rank_timing import max_over_ranks
from pipeline.model.step import TrainingStep
from pipeline.parallel import OverlapDDP, ShardedOptimizer
from pipeline.stages.sharding.cell import IMPLS
from pipeline.subjects.naming import Subject
from pipeline.ways.notes import warm_up
from pipeline.ways.way import Turn, Way

MemoryAt = dict[tuple[str, str], float]
SHARDED = {"sharded": ShardedOptimizer, "torch_zero": ZeroRedundancyOptimizer}


def build(impl: str, step: TrainingStep) -> TrainingStep:
    """Give a rank's step an optimizer; gradients are averaged in place, without buffers that would count as memory."""
    model = OverlapDDP(step.model)
    step = replace(step, model=model, finish_gradients=model.finish_gradient_synchronization)
    if impl not in SHARDED:
        return step
    return replace(step, optimizer=SHARDED[impl](model.parameters(), torch.optim.AdamW))


def build_own(subject: Subject, step: TrainingStep) -> TrainingStep:
    """Give a rank's step an optimizer of the user's own."""
    from pipeline.subjects.loading import load

    step = build("", step)
    return replace(step, optimizer=load(subject.use)(step.model.parameters(), torch.optim.AdamW))


WAYS = [Way(impl, partial(build, impl)) for impl in IMPLS]


def own_ways(subject: Subject, _how: str) -> list[Way]:
    """Return the way of an optimizer of the user's own."""
    return [Way(subject.name, partial(build_own, subject), is_own=True)]


def note_memory(turn: Turn) -> None:
    """Note the memory after initialisation, and in the first and in a warm step before and after the optimizer."""
    step, device = turn.step, turn.context.device
    memory = _memory_at("initialised", step, device) | _memory_of_step("first_", step, device)
    warm_up(turn)
    device_bytes(device)  # resets the peak
    memory |= _memory_of_step("", step, device)
    turn.result.memory |= max_over_ranks(memory, device)


def _memory_of_step(prefix: str, step: TrainingStep, device: torch.device) -> MemoryAt:
    """Run a step, keeping the gradients until the memory after the update is known."""
    step.forward()
    step.backward()
    step.synchronize_gradients()
    before = _memory_at(f"{prefix}before_step", step, device)
    step.optimizer.step()
    after = _memory_at(f"{prefix}after_step", step, device)
    step.optimizer.zero_grad()
    return before | after


def _memory_at(moment: str, step: TrainingStep, device: torch.device) -> MemoryAt:
    sizes = device_bytes(device) | kinds_bytes(step.model, step.optimizer)
    return {(moment, kind): float(size) for kind, size in sizes.items()}
