"""Measure one turn of an implementation on one rank: check it, train it briefly, time its steps, budget them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import torch

from pipeline.attention import ATTENTION, AttentionFunction
from pipeline.instruments.machine.peaks import peak_to_measure
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.memory.rank_memory import peak_bytes_over_ranks, reset_peak
from pipeline.instruments.profilers.budget import budget
from pipeline.instruments.profilers.gpu_busy import GpuBusy, profile_work, summarise_work
from pipeline.instruments.sampling.rank_timing import STEP, time_steps_over_ranks
from pipeline.instruments.sampling.step_timing import Sampling, time_call_ms
from pipeline.model.fused.operations import Operations, in_torch, in_triton
from pipeline.parallel.processes.starting import RankContext
from pipeline.stages.step8b.cell import COMPILED, FUSIONS, Cell, Settings
from pipeline.stages.step8b.correctness import check, check_rows
from pipeline.stages.step8b.keeping import choose
from pipeline.stages.step8b.models import Training, build, random_batch

Row = dict[str, Any]
# The fields of torch's `Operations` that each fusion replaces.
FIELDS = {
    "rms_norm": ("rms_norm", "rms_norm_backward"),
    "rotary": ("rotate",),
    "swiglu": ("swiglu", "swiglu_backward"),
    "loss": ("cross_entropy", "scale"),
}


@dataclass(frozen=True)
class Turn:
    """One turn; sampling is None if the implementation is wrong, and step has the columns of its whole step.

    once: the rows that only a first turn measures; busy: what the GPU did in a step, also only in a first turn.
    """

    once: list[Row] = field(default_factory=list)
    sampling: Sampling | None = None
    step: Row = field(default_factory=dict)
    busy: GpuBusy | None = None


def measure_turn(context: RankContext, cell: Cell, settings: Settings, impl: str, is_first: bool) -> Turn:
    """Check the implementation if it is ours, train it briefly, then time and profile steps at the full context."""
    device, once = context.device, list[Row]()
    if impl == "ours" and is_first:
        once = check_rows(check(cell, settings, device), settings)
        if once[0]["status"] == "wrong":
            return Turn(once)
    make_room(device)
    keeping = choose(impl, cell, settings, device)
    training = build(impl, cell, settings, device, context.rank, keeping.levels)
    # Not a compiled peer: the second context would make it compile again, for any length.
    if is_first and impl not in COMPILED:
        once.append(_descent_row(training, cell, settings, context))
    reset_peak(device)
    first_step_ms = time_call_ms(training.run, device)
    # One more warm-up step: unlike the first, it is like the timed ones.
    sampling = time_steps_over_ranks(training.phases, device, warmup=1, steps=settings.steps)
    step = {
        "first_step_ms": first_step_ms,
        "measured_peak_tflops_per_s": peak_to_measure(device, "bf16"),
        "peak_bytes": peak_bytes_over_ranks(device),
        **keeping.columns,
    }
    if is_first and impl == "ours" and keeping.beside_fusions:
        once += _fusion_rows(training, device, settings.fusion_steps, keeping.beside_fusions)
        once.append(_fusion_row("kept_products", sampling, step["peak_bytes"]))
    busy = None
    if is_first and device.type == "cuda":
        works, walls_ms = profile_work(training.run, device, steps=1)
        if len(works[0]):  # else the driver reports nothing
            parts = budget(works[0], walls_ms[0])
            once += [{"measures": "budget", "status": "ok", **part} for part in parts]
            busy = summarise_work(works, walls_ms)
    return Turn(once, sampling, step, busy)


def _descent_row(training: Training, cell: Cell, settings: Settings, context: RankContext) -> Row:
    """Train on one short batch, which also creates the optimizer's state."""
    batch = training.tokens, training.targets
    short = min(settings.descent_context, cell.context_length)
    training.tokens, training.targets = random_batch(settings.vocab_size, short, context.device, context.rank)
    losses = [float(loss) for loss in [training.run() for _ in range(settings.descent_steps)]]
    training.tokens, training.targets = batch
    return descent_row(losses)


def descent_row(losses: list[float]) -> Row:
    """Return the row of losses; its status is wrong if they do not fall."""
    outcome: Row = {"status": "ok"}
    if not losses[-1] < losses[0]:
        outcome = {"status": "wrong", "reason": f"the loss does not fall: {losses[0]:.5g}, then {losses[-1]:.5g}"}
    return {"measures": "descent", **outcome, "losses": losses}


def _fusion_rows(training: Training, device: torch.device, steps: int, levels: Sequence[str]) -> list[Row]:
    """Time the step without fusions, then with one more at a time, each after a step that warms it up.

    levels: what the layers keep meanwhile. The last fusion, which keeps more, is not timed here. Afterwards the model
    computes as it did before.
    """
    assert training.fused is not None
    fused, block = training.fused, training.fused.blocks[0]
    before, kept = (block.operations, block.attention_function), [each.keeps for each in fused.blocks]
    fused.keep(levels)
    rows = []
    for fusion, operations, attention in ladder(device):
        fused.use(operations, attention)
        training.run()
        reset_peak(device)
        sampling = time_steps_over_ranks({"run": training.run}, device, 0, steps)
        rows.append(_fusion_row(fusion, sampling, peak_bytes_over_ranks(device)))
    fused.use(*before)
    fused.keep(kept)
    return rows


def _fusion_row(fusion: str, sampling: Sampling, peak_bytes: int | None) -> Row:
    step_ms = median(sampling.timings[STEP].host_ms)
    return {"measures": "fusion", "status": "ok", "fusion": fusion, "step_ms": step_ms, "peak_bytes": peak_bytes}


def ladder(device: torch.device) -> Iterator[tuple[str, Operations, AttentionFunction]]:
    """Yield the fusions in the order in which they are added, each with the operations and attention to use."""
    operations = in_torch()
    yield FUSIONS[0], operations, ATTENTION["sdpa"]
    if device.type != "cuda":  # our kernels need a GPU
        return
    yield "attention", operations, ATTENTION["flash"]
    for fusion, names in FIELDS.items():
        operations = replace(operations, **{name: getattr(in_triton(), name) for name in names})
        yield fusion, operations, ATTENTION["flash"]
