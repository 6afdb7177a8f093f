"""Attention functions that can stand in for each other, by name."""

from collections.abc import Callable

from torch import Tensor

from pipeline.attention.eager import eager_attention

# attention(q, k, v, is_causal) -> output.
# Shapes: q and output are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
AttentionFunction = Callable[[Tensor, Tensor, Tensor, bool], Tensor]

ATTENTION: dict[str, AttentionFunction] = {"eager": eager_attention}
