"""The ways to train: how each makes a rank's training step its own, and its weights in full."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeline.instruments.sampling.weight_differences import named
from pipeline.model.step import TrainingStep
from pipeline.model.transformer import Embedding, Linear, TransformerBlock
from pipeline.parallel import FSDP, OverlapDDP, ShardedOptimizer
from pipeline.parallel.replicas import broadcast_from_rank_0
from pipeline.stages.fsdp.cell import FULLY_SHARDED, IMPLS, SUBJECTS
from pipeline.subjects.naming import Subject
from pipeline.ways.way import Way


def build(impl: str, step: TrainingStep) -> TrainingStep:
    """Make a rank's step that of a way; all but `none` take rank 0's weights.

    Optimizers are made last, of the shards where there are any.
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
    # torch's waits for its communication inside backward.
    return replace(step, finish_gradients=getattr(step.model, "finish_gradient_synchronization", None))


def build_own(subject: Subject, step: TrainingStep) -> TrainingStep:
    """Wrap the model of a rank's step in a wrapper of the user's own."""
    from pipeline.subjects.wrapping import Wrapped

    broadcast_from_rank_0(step.model.parameters())  # as for torch's: not every wrapper does it itself
    own = Wrapped(step.model, subject, compute_dtype=compute_dtype_at(step.precision))
    own.optimizer = torch.optim.AdamW(own.parameters())
    return replace(step, model=own, optimizer=own.optimizer, finish_gradients=own.finish_gradients)


WAYS = [
    Way(impl, partial(build, impl), captured=impl in FULLY_SHARDED, communicates=impl not in SUBJECTS.apart)
    for impl in IMPLS
]


def own_ways(subject: Subject, _how: str) -> list[Way]:
    """Return the way of a wrapper of the user's own."""
    return [Way(subject.name, partial(build_own, subject), captured=True, is_own=True)]


def compute_dtype_at(precision: str) -> torch.dtype | None:
    """Return the dtype in which a sharded model computes; None for that of its weights."""
    return torch.bfloat16 if precision == "bf16" else None


def is_block_or_end(module: nn.Module) -> bool:
    """Tell whether a module of the transformer is a unit: a block, the embedding or the head."""
    return isinstance(module, TransformerBlock | Embedding | Linear)


def full_weights(step: TrainingStep) -> Mapping[str, Tensor]:
    """Return the weights of a step's model in full, by the names that they have in the model. A collective.

    They take the place of the optimizer's state, for they may take as much memory.
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
