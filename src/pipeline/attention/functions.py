"""The registry of attention functions, and plain functions over the autograd ones; see `pipeline.attention`."""

from collections.abc import Callable

import torch
from torch import Tensor

from pipeline.attention.eager import eager_attention
from pipeline.attention.tiled import FlashAttentionTiled
from pipeline.attention.triton.autograd import FlashAttentionTriton

# attention(q, k, v, is_causal) -> output.
# Shapes: q and output are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
AttentionFunction = Callable[[Tensor, Tensor, Tensor, bool], Tensor]


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention by FlashAttention-2 in PyTorch operations; under autocast in its dtype."""
    return FlashAttentionTiled.apply(*_autocast(q, k, v), is_causal)


def flash_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention by FlashAttention-2 in Triton kernels, on a GPU; under autocast in its dtype."""
    q, k, v = _autocast(q, k, v)
    return FlashAttentionTriton.apply(q, k, v, is_causal)


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast as autocast does before an operation that it runs in low precision."""
    device_type = q.device.type
    if not torch.is_autocast_enabled(device_type):
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    return q.to(dtype), k.to(dtype), v.to(dtype)


ATTENTION: dict[str, AttentionFunction] = {
    "eager": eager_attention,
    "tiled": tiled_attention,
    "flash": flash_attention,
}
