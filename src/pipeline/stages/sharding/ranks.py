"""Measure one rank of a sharding cell: train with each optimizer, noting memory, bytes and times, then free memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.memory.training_kinds import device_bytes, kinds_bytes
from pipeline.instruments.profilers.collective_traffic import Collective, CollectiveLog
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy
from pipeline.instruments.sampling.rank_timing import max_over_ranks, time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling
from pipeline.instruments.sampling.variants import turns
from pipeline.instruments.sampling.weight_differences import Comparison, Differences, named
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.parallel import OverlapDDP, ShardedOptimizer
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.sharding.cell import Cell, Settings

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject

MemoryAt = dict[tuple[str, str], float]


@dataclass
class Result:
    """The results of one optimizer's turns; bytes are the fullest rank's, for each kind and moment."""

    samplings: list[Sampling] = field(default_factory=list)
    memory: MemoryAt = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    parameter_bytes: list[int] = field(default_factory=list)
    differences: Differences = field(default_factory=Differences)
    pinned_core: int | None = None
    busy: GpuBusy | None = None


def measure_optimizers(
    context: RankContext,
    cell: Cell,
    settings: Settings,
    impls: Sequence[str],
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> dict[str, Result]:
    """Let the optimizers take turns, each from the same weights and alone in memory; then profile steps of each.

    Profiles come last, because a profiler may disturb what runs after it. subjects: the optimizers that are of the
    user's own; mark: where to note which of them runs, see `pipeline.subjects.checking`.
    """
    own = {subject.name: subject for subject in subjects}
    turns_of_own = None
    if subjects:
        from pipeline.subjects.turns import Turns

        turns_of_own = Turns(subjects, mark if context.rank == 0 else None)

    def build(impl: str) -> TrainingStep:
        if turns_of_own is not None:
            turns_of_own.begin(impl)
        return _build_step(impl, cell, settings, context, own.get(impl))

    comparison = Comparison()  # with the first optimizer
    dist.barrier()  # what the first collective starts is not pinned
    with pinned(context.device, context.rank, context.world_size) as core:
        results = {impl: Result(pinned_core=core) for impl in impls}
        for impl, is_first_turn in turns(impls, settings.rounds):
            if is_first_turn:  # only then: allocating everything anew takes as long as several steps
                make_room(context.device)
            _take_turn(build(impl), results[impl], settings, comparison, context, is_first_turn)
        if context.device.type == "cuda":
            for impl in impls:
                results[impl].busy = _profile(build(impl), context)
        if turns_of_own is not None:
            turns_of_own.end()
    return results


def _profile(step: TrainingStep, context: RankContext) -> GpuBusy | None:
    step.run()
    return profile_gpu_busy(step.run, context.device)


def _take_turn(
    step: TrainingStep,
    result: Result,
    settings: Settings,
    comparison: Comparison,
    context: RankContext,
    is_first_turn: bool,
) -> None:
    """Time training steps; before those of the first turn, note memory and bytes; after them, compare the weights."""
    if is_first_turn:
        comparison.begin(partial(named, step.model))
        _note_memory(step, result, settings.warmup_steps, context.device)
        _note_collectives(step, result)
    warmup_steps = 0 if is_first_turn else settings.warmup_steps  # the notes took more steps than that
    timed = time_steps_over_ranks(_phases(step), context.device, warmup_steps, settings.steps)
    result.samplings.append(timed)
    if is_first_turn:
        result.differences = comparison.differences(named(step.model), context.device)


def _build_step(
    impl: str, cell: Cell, settings: Settings, context: RankContext, subject: "Subject | None"
) -> TrainingStep:
    """Build a rank's step: gradients are averaged in place, without buffers that would count as memory."""
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size_per_rank,
        precision=cell.precision,
        device=context.device,
        seed=context.rank,
    )
    model = OverlapDDP(step.model)
    step = replace(step, model=model, finish_gradients=model.finish_gradient_synchronization)
    if subject is not None:
        from pipeline.subjects.loading import load

        return replace(step, optimizer=load(subject.use)(model.parameters(), torch.optim.AdamW))
    if impl == "sharded":
        return replace(step, optimizer=ShardedOptimizer(model.parameters(), torch.optim.AdamW))
    if impl == "torch_zero":
        return replace(step, optimizer=ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW))
    return step


def _phases(step: TrainingStep) -> dict:
    return {
        "forward": step.forward,
        "backward": step.backward,
        "communication": step.synchronize_gradients,
        "optimizer": step.optimizer_step,
    }


def _note_memory(step: TrainingStep, result: Result, warmup_steps: int, device: torch.device) -> None:
    """Note the memory after initialisation, and in the first and in a warm step before and after the optimizer."""
    result.parameter_bytes = [parameter.nbytes for parameter in step.model.parameters()]
    memory = _memory_at("initialised", step, device) | _memory_of_step("first_", step, device)
    for _ in range(warmup_steps):
        step.run()
    device_bytes(device)  # resets the peak
    memory |= _memory_of_step("", step, device)
    result.memory = max_over_ranks(memory, device)


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


def _note_collectives(step: TrainingStep, result: Result) -> None:
    with CollectiveLog() as log:
        step.run()
    # Without the byte per parameter that says whether it has a gradient.
    result.collectives = [call for call in log.calls if call.dtype.is_floating_point]
