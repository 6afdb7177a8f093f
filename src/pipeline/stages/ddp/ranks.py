"""Measure one rank of a ddp cell: build a variant, time its training steps, compare weights, free the memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.memory.rank_memory import begin_anew, peak_bytes_over_ranks
from pipeline.instruments.profilers.collective_traffic import CollectiveLog, total_bytes
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_gpu_busy
from pipeline.instruments.profilers.lanes import Lanes, capture_step
from pipeline.instruments.sampling.rank_timing import time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling
from pipeline.instruments.sampling.variants import turns
from pipeline.instruments.sampling.weight_differences import Comparison, Differences, named
from pipeline.model.step import TrainingStep
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.ddp.cell import CAPTURED, Cell, Settings, Variant
from pipeline.stages.ddp.variants import build_step, phases

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject


@dataclass
class Result:
    """The results of one variant's turns; times are the slowest rank's, bytes the fullest rank's."""

    samplings: list[Sampling] = field(default_factory=list)
    peak_bytes: int | None = None
    gradient_bytes: int = 0
    all_reduces: int = 0
    all_reduce_bytes: int = 0
    differences: Differences = field(default_factory=Differences)
    pinned_core: int | None = None
    busy: GpuBusy | None = None
    lanes: Lanes | None = None


def measure_variants(
    context: RankContext,
    cell: Cell,
    settings: Settings,
    variants: Sequence[Variant],
    subjects: Sequence["Subject"] = (),
    mark: Path | None = None,
) -> dict[Variant, Result]:
    """Let the variants take turns, each from the same weights and alone in memory; then profile steps of each.

    Profiles come last, because a profiler may disturb what runs after it. subjects: the wrappers of the variants that
    are of the user's own; mark: where to note which of them runs, see `pipeline.subjects.checking`.
    """
    rank = _Rank(context, cell, settings, subjects, mark)
    dist.barrier()  # what the first collective starts is not pinned
    with pinned(context.device, context.rank, context.world_size) as core:
        results = {variant: Result(pinned_core=core) for variant in variants}
        for variant, is_first_turn in turns(variants, settings.rounds):
            rank.take_turn(variant, results[variant], is_first_turn)
        for variant in variants:
            rank.profile(variant, results[variant])
        if rank.turns is not None:
            rank.turns.end()
    return results


class _Rank:
    """One rank on which variants take turns; each turn frees its model."""

    def __init__(
        self,
        context: RankContext,
        cell: Cell,
        settings: Settings,
        subjects: Sequence["Subject"],
        mark: Path | None,
    ) -> None:
        self.rank, self.device = context.rank, context.device
        self.cell, self.settings = cell, settings
        self.subjects = {subject.name: subject for subject in subjects}
        self.turns = None
        if subjects:
            from pipeline.subjects.turns import Turns

            self.turns = Turns(subjects, mark if self.rank == 0 else None)
        self.comparison = Comparison()  # with the first variant that averages

    def take_turn(self, variant: Variant, result: Result, is_first_turn: bool) -> None:
        """Time training steps; after those of the first turn, note memory and collectives and compare the weights.

        Only the first turn starts with empty device memory, to measure its own peak: allocating everything anew takes
        as long as several steps.
        """
        if is_first_turn:
            begin_anew(self.device)
        step = self._build_step(variant)
        if is_first_turn and variant.impl != "none":
            self.comparison.begin(partial(named, step.model))
        sampling = time_steps_over_ranks(phases(step), self.device, self.settings.warmup_steps, self.settings.steps)
        result.samplings.append(sampling)
        if is_first_turn:
            result.peak_bytes = peak_bytes_over_ranks(self.device)
            # The variant without communication is compared too: its weights must differ.
            result.differences = self.comparison.differences(named(step.model), self.device)
            _count(step, variant.impl != "none" and variant.impl not in self.subjects, result)

    def profile(self, variant: Variant, result: Result) -> None:
        """Profile warm steps for what the GPU does in them and, of some variants, capture one on rank 0."""
        is_captured = variant.impl in CAPTURED
        if self.device.type != "cuda" and not is_captured:
            return
        step = self._build_step(variant)
        step.run()
        result.busy = profile_gpu_busy(step.run, self.device)
        if is_captured:
            result.lanes = capture_step(step.run, self.device, listen=self.rank == 0)

    def _build_step(self, variant: Variant) -> TrainingStep:
        subject = self.subjects.get(variant.impl)
        if self.turns is not None:
            self.turns.begin(variant.impl)
        return build_step(variant, self.cell, self.settings, self.rank, self.device, subject)


def _count(step: TrainingStep, averages: bool, result: Result) -> None:
    """Count the gradients' bytes and the all-reduces of one step that carry them.

    Raises RuntimeError if a step that averages gradients shows no all-reduce.
    """
    result.gradient_bytes = sum(weight.nbytes for weight in step.model.parameters() if weight.requires_grad)
    with CollectiveLog() as log:
        step.run()
    carrying = [call for call in log.calls if call.name == "allreduce" and call.dtype.is_floating_point]
    if averages and not carrying:
        raise RuntimeError("no all-reduce of a step was logged: the log does not reach the thread that starts them")
    result.all_reduces, result.all_reduce_bytes = len(carrying), total_bytes(carrying)
