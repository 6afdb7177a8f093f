"""Measure a sharding cell: memory by kind, bytes sent and step time with each optimizer, in the same ranks."""

import math
from dataclasses import replace
from functools import partial

import torch
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.errors import UserError
from pipeline.instruments.memory.freed_memory import make_room
from pipeline.instruments.memory.recording import Recording, record_memory
from pipeline.instruments.memory.replay import replay, thin_out, timeline
from pipeline.instruments.memory.training_kinds import device_bytes, kinds_bytes
from pipeline.instruments.sampling.rank_timing import max_over_ranks
from pipeline.instruments.sampling.weight_differences import TOLERANCE
from pipeline.model.step import TrainingStep
from pipeline.parallel import OverlapDDP, ShardedOptimizer
from pipeline.stages.sharding.cell import COLLECTIVES, IMPLS, PEAKS, WHOLE_STEP, Cell
from pipeline.stages.sharding.prediction import Share, fullest_share, memory_bytes
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import measure_cell, time_rows, traffic_rows
from pipeline.ways.way import Curve, Experiment, Result, Row, Turn, Way

MemoryAt = dict[tuple[str, str], float]
TIMELINE_PARTS = 120
MAX_RECORDINGS = 10
SHARDED = {"sharded": ShardedOptimizer, "torch_zero": ZeroRedundancyOptimizer}


def build(impl: str, step: TrainingStep) -> TrainingStep:
    """Give a rank's step an optimizer; gradients are averaged in place, without buffers that would count as memory."""
    model = OverlapDDP(step.model)
    step = replace(step, model=model, finish_gradients=model.finish_gradient_synchronization)
    if impl not in SHARDED:
        return step
    return replace(step, optimizer=SHARDED[impl](model.parameters(), torch.optim.AdamW))


def build_own(subject: Subject, step: TrainingStep) -> TrainingStep:
    """Give a rank's step the user's optimizer."""
    from pipeline.subjects.loading import load

    step = build("", step)
    return replace(step, optimizer=load(subject.use)(step.model.parameters(), torch.optim.AdamW))


WAYS = [Way(impl, partial(build, impl)) for impl in IMPLS]


def own_ways(subject: Subject, _how: str) -> list[Way]:
    """Return the way that uses the user's optimizer."""
    return [Way(subject.name, partial(build_own, subject), is_own=True)]


def note_memory(turn: Turn) -> None:
    """Record memory after initialisation, and before and after the optimizer in the first and in a warm step."""
    step, device = turn.step, turn.context.device
    memory = _memory_at("initialised", step, device) | _memory_of_step("first_", step, device)
    notes.warm_up(turn)
    device_bytes(device)  # resets the peak
    memory |= _memory_of_step("", step, device)
    turn.result.memory |= max_over_ranks(memory, device)


def note_timeline(turn: Turn) -> None:
    """Record the memory of a warm step on rank 0; its snapshot opens in pytorch.org/memory_viz.

    While the recording is incomplete every rank repeats the step, up to MAX_RECORDINGS times. So this comes last:
    weights are compared after the same number of steps in every way.
    """
    for _ in range(MAX_RECORDINGS):
        turn.result.timeline = _record_step(turn)
        is_short = {"is_short": float(isinstance(turn.result.timeline, str))}
        if not max_over_ranks(is_short, turn.context.device)["is_short"]:
            return


def _record_step(turn: Turn) -> Curve | str | None:
    """Run a step; return its memory curve, or why the recording is incomplete and was deleted; None on other ranks."""
    if turn.files is None:
        turn.step.run()
        return None
    device, path = turn.context.device, turn.files / f"{turn.way.name}.snapshot.pickle"
    begin_bytes = _held_bytes(turn.step)
    with record_memory(device, path) as recorder:
        turn.step.run()
    # On a GPU this is unknown: the recording includes what libraries keep for themselves.
    end_bytes = _held_bytes(turn.step) if device.type == "cpu" else None
    try:
        return curve(recorder.read(), begin_bytes, end_bytes)
    except UserError as error:
        path.unlink(missing_ok=True)
        return str(error)


def _held_bytes(step: TrainingStep) -> int:
    return sum(kinds_bytes(step.model, step.optimizer).values())


def curve(recording: Recording, begin_bytes: int, end_bytes: int | None = None) -> Curve:
    """Return the active bytes over the events of a recording that began with `begin_bytes`.

    Raises UserError if events are missing: an address is allocated twice, or the bytes do not end at `end_bytes`.
    """
    found = replay(recording.events)
    total = timeline(found, dict.fromkeys(found, ""), len(recording.events)).total_bytes
    total += begin_bytes - total[0]
    if end_bytes is not None and total[-1] != end_bytes:
        raise UserError(f"memory events are missing: they end with {total[-1]} bytes in use, the step with {end_bytes}")
    chosen = thin_out(total, TIMELINE_PARTS)
    return chosen, [int(total[event]) for event in chosen]


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


def rows(way: Way, result: Result, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one optimizer, with counted and predicted bytes."""
    off, tolerance = result.differences.from_reference, TOLERANCE[cell.precision]
    predicted = predict(way, result, cell.world_size)
    memory = {"measures": "memory", "status": "ok"}
    found = [
        *time_rows(result, measures="time", weight_difference=off, weight_tolerance=tolerance),
        *(
            {
                **memory,
                "moment": key[0],
                "kind": key[1],
                "measured_bytes": int(size),
                "predicted_bytes": predicted.get(key),
            }
            for key, size in result.memory.items()
        ),
        *traffic_rows(result.collectives, COLLECTIVES),
    ]
    if isinstance(result.timeline, str):
        found.append({"measures": "timeline", "status": "skipped", "reason": result.timeline})
    elif result.timeline is not None:
        events, active_bytes = result.timeline
        found.append({"measures": "timeline", "status": "ok", "events": events, "active_bytes": active_bytes})
    return [{"backend": backend, **row} for row in found]


def predict(way: Way, result: Result, world_size: int) -> dict[tuple[str, str], int]:
    """Return the bytes by formula; empty for the user's optimizer, as it is unknown how that shards its state."""
    sizes = result.parameter_bytes
    share = Share(len(sizes), sum(sizes)) if way.name == "adamw" else fullest_share(sizes, world_size)
    first = {peak: int(result.memory.get(("first_before_step", peak), 0)) for peak in PEAKS}
    return {} if way.is_own else memory_bytes(sum(sizes), share, first if any(first.values()) else None)


EXPERIMENT = Experiment(
    WAYS,
    first_turn=(
        notes.note_parameters,
        note_memory,
        notes.note_traffic,
        notes.time_steps,
        notes.compare_weights,
        note_timeline,
    ),
    whole_step=WHOLE_STEP,
    rows=rows,
    own_ways=own_ways,
    alike_up_to=math.inf,
    make_room=make_room,
)
measure = partial(measure_cell, EXPERIMENT)
