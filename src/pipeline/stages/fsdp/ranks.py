"""Measure one rank of an fsdp cell: train each way, note memory, bytes and times, capture a step, free the memory."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.rank_memory import begin_anew, peak_bytes_over_ranks
from pipeline.instruments.memory.training_kinds import kinds_bytes
from pipeline.instruments.profilers.collective_traffic import Collective, CollectiveLog
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy
from pipeline.instruments.profilers.lanes import Lanes, capture_step
from pipeline.instruments.sampling.rank_timing import max_over_ranks, time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling
from pipeline.instruments.sampling.variants import turns
from pipeline.instruments.sampling.weight_differences import Comparison, Differences
from pipeline.model.step import TrainingStep
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.fsdp.cell import FULLY_SHARDED, SUBJECTS, Cell, Settings
from pipeline.stages.fsdp.ways import build_step, full_weights, phases

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject


@dataclass
class Result:
    """The results of one way's turns; times are the slowest rank's, bytes the fullest rank's."""

    samplings: list[Sampling] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    collectives: list[Collective] = field(default_factory=list)
    loss: float | None = None
    differences: Differences = field(default_factory=Differences)
    pinned_core: int | None = None
    busy: GpuBusy | None = None
    lanes: Lanes | None = None


def measure_ways(
    context: RankContext,
    cell: Cell,
    settings: Settings,
    impls: Sequence[str],
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> dict[str, Result]:
    """Let the ways take turns, each from the same weights and alone in memory; then profile steps of each.

    Profiles come last, because a profiler may disturb what runs after it. subjects: the wrappers of the ways that are
    of the user's own; mark: where to note which of them runs, see `pipeline.subjects.checking`.
    """
    own = {subject.name: subject for subject in subjects}
    turns_of_own = None
    if subjects:
        from pipeline.subjects.turns import Turns

        turns_of_own = Turns(subjects, mark if context.rank == 0 else None)

    def build(impl: str) -> TrainingStep:
        if turns_of_own is not None:
            turns_of_own.begin(impl)
        return build_step(impl, cell, settings, context, own.get(impl))

    comparison = Comparison()  # with the first way that communicates
    dist.barrier()  # what the first collective starts is not pinned
    with pinned(context.device, context.rank, context.world_size) as core:
        results = {impl: Result(pinned_core=core) for impl in impls}
        for impl, is_first_turn in turns(impls, settings.rounds):
            compared_with = None if impl in SUBJECTS.apart else comparison
            _take_turn(partial(build, impl), results[impl], settings, context, compared_with, is_first_turn)
        for impl in impls:
            is_captured = impl in FULLY_SHARDED or impl in own
            _profile(partial(build, impl), results[impl], settings, context, is_captured)
        if turns_of_own is not None:
            turns_of_own.end()
    return results


def _take_turn(
    build: Callable[[], TrainingStep],
    result: Result,
    settings: Settings,
    context: RankContext,
    comparison: Comparison | None,
    is_first_turn: bool,
) -> None:
    """Time training steps; before those of the first turn, note memory and bytes, after them the loss and the weights.

    Only the first turn starts with empty device memory: allocating everything anew takes as long as several steps.
    """
    if is_first_turn:
        begin_anew(context.device)
    gc.collect()  # hooks refer to the module that has them: counting references alone would keep the turn before
    step = build()
    if is_first_turn and comparison is not None:
        comparison.begin(partial(full_weights, step.model))
    if is_first_turn:
        for _ in range(settings.warmup_steps):
            step.run()
        _note_memory(step, result, context)
        _note_collectives(step, result)
    warmup_steps = 0 if is_first_turn else settings.warmup_steps
    timed = time_steps_over_ranks(phases(step), context.device, warmup_steps, settings.steps)
    result.samplings.append(timed)
    if is_first_turn:
        losses = step.run()
        dist.all_reduce(losses)
        result.loss = losses.item() / context.world_size
    if is_first_turn and comparison is not None:
        step.discard()
        step.optimizer.state.clear()  # full weights take no more than it did
        result.differences = comparison.differences(full_weights(step.model), context.device)


def _note_memory(step: TrainingStep, result: Result, context: RankContext) -> None:
    """Run a warm step for its peak; count the tensors of each kind before its gradients are dropped."""
    if context.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(context.device)
    step.forward()
    step.backward()
    step.synchronize_gradients()
    step.optimizer.step()
    counted = {kind: float(size) for kind, size in kinds_bytes(step.model, step.optimizer).items()}
    result.memory = {kind: int(size) for kind, size in max_over_ranks(counted, context.device).items()}
    peak_bytes = peak_bytes_over_ranks(context.device)
    if peak_bytes is not None:
        result.memory["peak"] = peak_bytes
    step.discard()


def _note_collectives(step: TrainingStep, result: Result) -> None:
    with CollectiveLog() as log:
        step.run()
    # Without the byte per parameter that says whether it has a gradient.
    result.collectives = [call for call in log.calls if call.dtype.is_floating_point]


def _profile(
    build: Callable[[], TrainingStep], result: Result, settings: Settings, context: RankContext, is_captured: bool
) -> None:
    """Profile warm steps for what the GPU does in them and, of the fully sharded ways, capture one on rank 0."""
    if context.device.type != "cuda" and not is_captured:
        return
    gc.collect()
    step = build()
    for _ in range(settings.warmup_steps):
        step.run()
    result.busy = profile_gpu_busy(step.run, context.device)
    if is_captured:
        result.lanes = capture_step(step.run, context.device, listen=context.rank == 0)
