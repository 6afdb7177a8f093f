"""Run ways to train in turns on one rank: build one, note what the stage asks for, time its steps, free it."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.machine.pinning import pinned
from pipeline.instruments.profilers.gpu_busy import profile_gpu_busy
from pipeline.instruments.profilers.lanes import capture_step
from pipeline.instruments.sampling.variants import turns
from pipeline.instruments.sampling.weight_differences import Comparison
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.parallel.processes.starting import RankContext
from pipeline.subjects.naming import Subject
from pipeline.ways.cell import RanksCell, RanksSettings
from pipeline.ways.notes import time_steps
from pipeline.ways.way import Experiment, Result, Turn, Way


def measure_in_turn(
    context: RankContext,
    cell: RanksCell,
    settings: RanksSettings,
    ways: Sequence[Way],
    experiment: Experiment,
    subjects: Sequence[Subject] = (),
    mark: Path | None = None,
    files: Path | None = None,
) -> list[Result]:
    """Run the ways in turns, each from the same weights and alone in memory; then profile steps of each.

    Profiles come last, because a profiler may disturb what runs after it. subjects: the user's own implementations,
    whose ways may be among these; mark: the file to note in which of them is running, see
    `pipeline.subjects.checking`; files: the folder for capture files.
    """
    rank = _Rank(context, cell, settings, experiment, files if context.rank == 0 else None)
    if subjects:
        from pipeline.subjects.turns import Turns

        rank.turns_of_own = Turns(subjects, mark if context.rank == 0 else None)
    dist.barrier()  # threads that the first collective starts must not be pinned
    with pinned(context.device, context.rank, context.world_size) as core:
        results = [Result(pinned_core=core) for _ in ways]
        for number, is_first_turn in turns(range(len(ways)), settings.rounds):
            rank.take_turn(ways[number], results[number], is_first_turn)
        for way, result in zip(ways, results, strict=True):
            rank.profile(way, result)
        if rank.turns_of_own is not None:
            rank.turns_of_own.end()
    return results


@dataclass
class _Rank:
    """One rank on which ways take turns; each turn frees its model."""

    context: RankContext
    cell: RanksCell
    settings: RanksSettings
    experiment: Experiment
    files: Path | None = None
    comparison: Comparison = field(default_factory=Comparison)
    turns_of_own: Any = None

    def take_turn(self, way: Way, result: Result, is_first_turn: bool) -> None:
        """Time training steps; in a way's first turn also do everything else the stage asks for.

        Only first turns start with empty device memory: reallocating everything takes as long as several steps.
        """
        if is_first_turn:
            self.experiment.make_room(self.context.device)
        weights, step = self.experiment.weights, self._build(way)
        if is_first_turn and way.communicates:
            self.comparison.begin(partial(weights, step))
        turn = Turn(way, step, result, self.context, self.settings, self.comparison, weights, self.files)
        for act in self.experiment.first_turn if is_first_turn else (time_steps,):
            act(turn)

    def profile(self, way: Way, result: Result) -> None:
        """Profile what the GPU does in warm steps and, for captured ways, capture one step on rank 0."""
        device = self.context.device
        if device.type != "cuda" and not way.captured:
            return
        step = self._build(way)
        for _ in range(self.settings.warmup_steps):
            step.run()
        result.busy = profile_gpu_busy(step.run, device)
        if way.captured:
            file = self.files and self.files / f"{way.name}.perfetto.json.gz"
            result.lanes = capture_step(step.run, device, listen=self.context.rank == 0, file=file)

    def _build(self, way: Way) -> TrainingStep:
        """Build a way's step, with weights and tokens that differ between ranks, so that communication matters."""
        gc.collect()  # hooks refer back to their module: without a collection these cycles keep the last turn
        if self.turns_of_own is not None:
            self.turns_of_own.begin(way.name)
        return way.build(plain_step(self.cell, self.settings, self.context.device, self.context.rank))


def plain_step(cell: RanksCell, settings: RanksSettings, device: torch.device, rank: int) -> TrainingStep:
    """Build a rank's step that does not communicate."""
    return build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size_per_rank,
        precision=cell.precision,
        device=device,
        seed=rank,
    )
