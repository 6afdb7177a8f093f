"""Activation checkpointing: keep the inputs of some blocks, and run the blocks again in the backward pass."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils import checkpoint

from pipeline.compat.torch_private import operator_name
from pipeline.formulas.checkpointing import KINDS, halves

Layers = Sequence[nn.Module]
Run = Callable[[Layers, Tensor], Tensor]

# Attention operators whose outputs are all that their backward pass needs besides q, k and v.
ATTENTION_OPERATORS = {
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "llm_systems_pipeline::flash_attention_forward",
}
# In other attention functions no single operator returns the output.
SELECTABLE_ATTENTIONS = ("flash", "sdpa")


def runner(every: int, kind: str) -> Run:
    """Return a function that runs blocks one after the other with the given checkpointing.

    `every`: the most blocks that run again at once; 0: no checkpoints. `kind`: one of `formulas.checkpointing.KINDS`.
    Raises ValueError for other values, and for any kind but the first without checkpoints.
    """
    if every < 0:
        raise ValueError(f"checkpoint_every={every}: must be 0 (never) or more")
    if kind not in KINDS:
        raise ValueError(f"checkpointing={kind!r}: must be one of {', '.join(KINDS)}")
    if every == 0:
        if kind != KINDS[0]:
            raise ValueError(f"checkpoint_every=0: must be 1 or more with checkpointing={kind!r}")
        return _in_turn
    if kind == "recursive":
        return partial(_by_halves, every)
    return partial(_by_segments, every, keeping_attention if kind == "selective" else checkpoint.noop_context_fn)


def _in_turn(layers: Layers, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _by_segments(every: int, context: Callable[[], Any], layers: Layers, x: Tensor) -> Tensor:
    for start in range(0, len(layers), every):
        x = _run_again(_in_turn, layers[start : start + every], x, context)
    return x


def _by_halves(every: int, layers: Layers, x: Tensor) -> Tensor:
    """Keep the inputs of both halves; when a half runs again, it does the same."""
    if len(layers) <= every:
        return _run_again(_in_turn, layers, x)
    first, _ = halves(len(layers))
    for half in (layers[:first], layers[first:]):
        x = _run_again(_in_turn if len(half) <= every else partial(_by_halves, every), half, x)
    return x


def _run_again(run: Run, layers: Layers, x: Tensor, context: Callable[[], Any] = checkpoint.noop_context_fn) -> Tensor:
    """Run layers now and again in the backward pass, which stops once it has all the tensors it needs."""
    # Nothing in a block is random, so there is no random state to restore.
    return checkpoint.checkpoint(run, layers, x, use_reentrant=False, preserve_rng_state=False, context_fn=context)


def keeping_attention() -> Any:
    """Return the contexts of a checkpoint that keeps the outputs of attention (`ATTENTION_OPERATORS`)."""
    return checkpoint.create_selective_checkpoint_contexts(_policy)


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> checkpoint.CheckpointPolicy:
    is_attention = operator_name(operator) in ATTENTION_OPERATORS
    return checkpoint.CheckpointPolicy.MUST_SAVE if is_attention else checkpoint.CheckpointPolicy.PREFER_RECOMPUTE
