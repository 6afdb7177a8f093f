"""Measure an fsdp cell: memory by kind, bytes sent and step time of each way to train, in the same ranks."""

from collections.abc import Sequence
from typing import Any

from pipeline.instruments.memory.rank_memory import reset_peak
from pipeline.instruments.memory.training_kinds import kinds_bytes
from pipeline.instruments.sampling.rank_timing import max_over_ranks
from pipeline.instruments.sampling.stopwatch import Stopwatch
from pipeline.stages.fsdp.cell import COLLECTIVES, WHOLE_STEP, Cell, Settings
from pipeline.stages.fsdp.ways import WAYS, compute_dtype_at, full_weights, own_ways
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import measure_cell, time_rows, traffic_rows
from pipeline.ways.way import Experiment, Result, Row, Turn, Way

# Of NCCL's kernels and gloo's ranges.
PATTERNS = {"gather": "all_?gather", "scatter": "reduce_?scatter"}


def measure(cell: Cell, settings: Settings, stopwatch: Stopwatch, subjects: Sequence[Subject] = ()) -> list[Row]:
    """Return rows of times, memory by kind, bytes by collective and the captured step of each way."""
    return measure_cell(EXPERIMENT, cell, settings, stopwatch, subjects)


def check_arguments(cell: Cell) -> tuple[Any, ...]:
    """Return with what a wrapper of the user's own is checked: the dtype in which it computes."""
    return (compute_dtype_at(cell.precision),)


def note_memory(turn: Turn) -> None:
    """Run a warm step for its peak; count the tensors of each kind before its gradients are dropped."""
    step, device = turn.step, turn.context.device
    reset_peak(device)
    step.forward()
    step.backward()
    step.synchronize_gradients()
    step.optimizer.step()
    counted = {kind: float(size) for kind, size in kinds_bytes(step.model, step.optimizer).items()}
    turn.result.memory |= max_over_ranks(counted, device)
    notes.note_peak(turn)
    step.discard()


def rows(way: Way, result: Result, cell: Cell, backend: str) -> list[Row]:
    """Make the rows of one way to train."""
    memory = {"measures": "memory", "status": "ok"}
    found = [
        *time_rows(result, measures="time", loss=result.loss, weight_share=result.differences.share),
        *({**memory, "kind": kind, "measured_bytes": int(size)} for kind, size in result.memory.items()),
        *traffic_rows(result.collectives, COLLECTIVES),
    ]
    if result.lanes is not None:
        found.append({"measures": "capture", "status": "ok", **result.lanes.columns_by_collective(PATTERNS)})
    return [{"backend": backend, **row} for row in found]


EXPERIMENT = Experiment(
    WAYS,
    first_turn=(
        notes.warm_up,
        note_memory,
        notes.note_traffic,
        notes.time_steps,
        notes.note_loss,
        notes.compare_if_communicates,
    ),
    whole_step=WHOLE_STEP,
    rows=rows,
    check_arguments=check_arguments,
    own_ways=own_ways,
    weights=full_weights,
)
