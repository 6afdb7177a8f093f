"""Measure one rank of one turn: an implementation, in processes of its own."""

from dataclasses import dataclass, field, replace

import torch

from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.memory.rank_memory import peak_bytes_over_ranks, reset_peak
from pipeline.instruments.profilers.budget import budget
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_work, summarise_work
from pipeline.instruments.sampling.rank_timing import time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling, time_call_ms
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.step8b.cell import Cell, Settings
from pipeline.stages.step8b.correctness import Errors, check, why_wrong
from pipeline.stages.step8b.fusions import Measured, measure_fusions
from pipeline.stages.step8b.keeping import Keeping, choose
from pipeline.stages.step8b.models import Training, build, random_batch


@dataclass(frozen=True)
class Timed:
    """What the steps of one turn gave; the peak of memory is the fullest rank's."""

    sampling: Sampling
    first_step_ms: float
    peak_bytes: int | None
    keeping: Keeping
    measured_peak_tflops_per_s: float | None


@dataclass(frozen=True)
class Turn:
    """One turn: `timed` is None where the implementation is wrong. Only a first turn has the rest."""

    timed: Timed | None = None
    errors: dict[str, Errors] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    fusions: list[Measured] = field(default_factory=list)
    busy: GpuBusy | None = None
    budget: list[dict] = field(default_factory=list)


def measure_turn(context: RankContext, cell: Cell, settings: Settings, impl: str, is_first: bool) -> Turn:
    """Check the implementation if it is ours, let it descend, then time and profile steps at the full context."""
    device = context.device
    errors = check(cell, settings, device) if impl == "ours" and is_first else {}
    if errors and why_wrong(errors, settings):
        return Turn(errors=errors)
    make_room(device)
    keeping = choose(impl, cell, settings, device)
    training = build(impl, cell, settings, device, context.rank, keeping.levels)
    # Not the compiled peer: it would be compiled for two contexts, and the second time for any.
    losses = _descend(training, cell, settings, context) if is_first and impl != "torch_compiled" else []
    timed = _time(training, keeping, settings, device)
    fusions = []
    if is_first and impl == "ours" and keeping.beside_fusions:
        fusions = measure_fusions(training, device, settings.fusion_steps, keeping.beside_fusions)
    turn = Turn(timed, errors, losses, fusions)
    if not is_first or device.type != "cuda":
        return turn
    works, walls_ms = profile_work(training.run, device, steps=1)
    if not len(works[0]):  # the driver tells nothing
        return turn
    return replace(turn, busy=summarise_work(works, walls_ms), budget=budget(works[0], walls_ms[0]))


def _descend(training: Training, cell: Cell, settings: Settings, context: RankContext) -> list[float]:
    """Train with one short batch; return the loss of every step. The optimizer's state exists from then on."""
    batch = training.tokens, training.targets
    short = min(settings.descent_context, cell.context_length)
    training.tokens, training.targets = random_batch(settings.vocab_size, short, context.device, context.rank)
    losses = [training.run() for _ in range(settings.descent_steps)]
    training.tokens, training.targets = batch
    return [float(loss) for loss in losses]


def _time(training: Training, keeping: Keeping, settings: Settings, device: torch.device) -> Timed:
    """Time steps after two, the second of which is as the timed ones."""
    reset_peak(device)
    first_step_ms = time_call_ms(training.run, device)
    sampling = time_steps_over_ranks(training.phases, device, warmup=1, steps=settings.steps)
    measured_peak = peak_to_measure(device, "bf16")
    return Timed(sampling, first_step_ms, peak_bytes_over_ranks(device), keeping, measured_peak)
