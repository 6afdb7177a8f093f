"""Measure an fsdp cell: memory by kind, bytes sent and step time of each way to train, in the same ranks."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeline.instruments.memory.rank_memory import reset_peak
from pipeline.instruments.memory.training_kinds import kinds_bytes
from pipeline.instruments.sampling.rank_timing import max_over_ranks
from pipeline.instruments.sampling.weight_differences import named
from pipeline.model.step import TrainingStep
from pipeline.model.transformer import Embedding, Linear, TransformerBlock
from pipeline.parallel import FSDP, OverlapDDP, ShardedOptimizer
from pipeline.parallel.replicas import broadcast_from_rank_0
from pipeline.stages.fsdp.cell import COLLECTIVES, FULLY_SHARDED, IMPLS, SUBJECTS, WHOLE_STEP, Cell
from pipeline.subjects.naming import Subject
from pipeline.ways import notes
from pipeline.ways.measure import time_rows, traffic_rows
from pipeline.ways.nsys_captures import measure_and_capture
from pipeline.ways.way import Experiment, Result, Row, Turn, Way

# Names of NCCL's kernels and gloo's ranges; gloo implements reduce-scatter as an all-reduce.
PATTERNS = {"gather": "all_?gather", "scatter": "reduce_?scatter|gloo:all_reduce"}


def check_arguments(cell: Cell) -> tuple[Any, ...]:
    """Return the arguments for checking the user's wrapper: the dtype in which it computes."""
    return (compute_dtype_at(cell.precision),)


def build(impl: str, step: TrainingStep) -> TrainingStep:
    """Turn a rank's step into that of a way; all but `none` take rank 0's weights.

    Optimizers are created last, for the shards if there are any.
    """
    if impl == "none":
        return step
    if impl in FULLY_SHARDED:
        model = _fully_sharded(impl, step.model, compute_dtype_at(step.precision))
        step = replace(step, model=model, optimizer=torch.optim.AdamW(model.parameters()))
    else:
        step = replace(step, model=OverlapDDP(step.model))
    if impl == "ddp_sharded":
        step = replace(step, optimizer=ShardedOptimizer(step.model.parameters(), torch.optim.AdamW))
    # torch's FSDP waits for its communication inside backward.
    return replace(step, finish_gradients=getattr(step.model, "finish_gradient_synchronization", None))


def build_own(subject: Subject, step: TrainingStep) -> TrainingStep:
    """Wrap the model of a rank's step in the user's wrapper."""
    from pipeline.subjects.wrapping import Wrapped

    broadcast_from_rank_0(step.model.parameters())  # as for torch's: not every wrapper does this itself
    own = Wrapped(step.model, subject, compute_dtype=compute_dtype_at(step.precision))
    own.optimizer = torch.optim.AdamW(own.parameters())
    return replace(step, model=own, optimizer=own.optimizer, finish_gradients=own.finish_gradients)


WAYS = [
    Way(impl, partial(build, impl), captured=impl in FULLY_SHARDED, communicates=impl not in SUBJECTS.apart)
    for impl in IMPLS
]


def own_ways(subject: Subject, _how: str) -> list[Way]:
    """Return the way for the user's wrapper."""
    return [Way(subject.name, partial(build_own, subject), captured=True, is_own=True)]


def compute_dtype_at(precision: str) -> torch.dtype | None:
    """Return the dtype in which a sharded model computes; None for that of its weights."""
    return torch.bfloat16 if precision == "bf16" else None


def is_block_or_end(module: nn.Module) -> bool:
    """Tell whether a module of the transformer is a unit: a block, the embedding or the head."""
    return isinstance(module, TransformerBlock | Embedding | Linear)


def full_weights(step: TrainingStep) -> Mapping[str, Tensor]:
    """Gather the full weights of a step's model, by their names in the model. All ranks must call this.

    Drops the gradients and the optimizer state first, because the weights may take as much memory.
    """
    step.discard()
    step.optimizer.state.clear()
    model = step.model
    if isinstance(model, FSDP):
        return model.full_state_dict()
    gather: Any = getattr(model, "gather", None)  # of the user's own
    if gather is not None:
        return gather()
    return {
        name: weight.full_tensor() if isinstance(weight, DTensor) else weight for name, weight in named(model).items()
    }


def _fully_sharded(impl: str, model: nn.Module, compute_dtype: torch.dtype | None) -> nn.Module:
    if impl == "torch_fsdp":
        broadcast_from_rank_0(model.parameters())
        policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=compute_dtype)
        for layer in model.layers:  # type: ignore[union-attr]
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return model
    return FSDP(model, compute_dtype, is_block_or_end if impl == "fsdp" else None)


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
        captured = result.lanes.columns_by_collective(PATTERNS) | result.lanes.each("gather", PATTERNS["gather"])
        found.append({"measures": "capture", "status": "ok", **captured})
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
measure = partial(measure_and_capture, str(__package__), EXPERIMENT)
