"""The training step of each way on one rank."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from pipeline.formulas.sizes import SIZES
from pipeline.instruments.sampling.weight_differences import named
from pipeline.model.step import TrainingStep, build_training_step
from pipeline.model.transformer import Embedding, Linear, TransformerBlock
from pipeline.parallel import FSDP, OverlapDDP, ShardedOptimizer
from pipeline.parallel.processes.starting import RankContext
from pipeline.parallel.replicas import broadcast_from_rank_0
from pipeline.stages.fsdp.cell import FULLY_SHARDED, Cell, Settings

if TYPE_CHECKING:
    from pipeline.subjects.naming import Subject


def build_step(
    impl: str, cell: Cell, settings: Settings, context: RankContext, subject: "Subject | None" = None
) -> TrainingStep:
    """Build a rank's step: weights and tokens use the rank's own seed; all ways but `none` take rank 0's weights.

    Optimizers are made last, of the shards where there are any. subject: the wrapper, if it is one of the user's own.
    """
    step = build_training_step(
        SIZES[cell.size],
        vocab_size=settings.vocab_size,
        context_length=cell.context_length,
        batch_size=cell.batch_size_per_rank,
        precision=cell.precision,
        device=context.device,
        seed=context.rank,
    )
    if impl == "none":
        return step
    compute_dtype = compute_dtype_of(cell)
    if subject is not None:
        from pipeline.subjects.wrapping import Wrapped

        broadcast_from_rank_0(step.model.parameters())  # as for torch's: not every wrapper does it itself
        own = Wrapped(step.model, subject, compute_dtype=compute_dtype)
        own.optimizer = torch.optim.AdamW(own.parameters())
        return replace(step, model=own, optimizer=own.optimizer, finish_gradients=own.finish_gradients)
    if impl in FULLY_SHARDED:
        model = _fully_sharded(impl, step.model, compute_dtype)
        step = replace(step, model=model, optimizer=torch.optim.AdamW(model.parameters()))
    else:
        step = replace(step, model=OverlapDDP(step.model))
    if impl == "ddp_sharded":
        step = replace(step, optimizer=ShardedOptimizer(step.model.parameters(), torch.optim.AdamW))
    # torch's waits for its communication inside backward.
    return replace(step, finish_gradients=getattr(step.model, "finish_gradient_synchronization", None))


def compute_dtype_of(cell: Cell) -> torch.dtype | None:
    """Return the dtype in which a sharded model computes; None for that of its weights."""
    return torch.bfloat16 if cell.precision == "bf16" else None


def is_block_or_end(module: nn.Module) -> bool:
    """Tell whether a module of the transformer is a unit: a block, the embedding or the head."""
    return isinstance(module, TransformerBlock | Embedding | Linear)


def full_weights(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the weights of a way in full, by the names that they have in the model. A collective."""
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


def phases(step: TrainingStep) -> dict[str, Any]:
    """Return the step's phases in their order; `communication` is the wait that remains after backward."""
    waiting = {} if step.finish_gradients is None else {"communication": step.synchronize_gradients}
    return {"forward": step.forward, "backward": step.backward, **waiting, "optimizer": step.optimizer_step}
