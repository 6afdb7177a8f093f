"""The operations between a transformer's matrix products, written plainly in torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the RMSNorm of x + residual times `weight`, and that sum; x and residual are (tokens, width)."""
    total = x + residual
    return functional.rms_norm(total, (total.shape[-1],), weight, eps), total


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate each pair (i, i + head_dim / 2) of queries and keys by its position's angle.

    Shapes: q and k are (batch, heads, seq_len, head_dim), cos and sin (seq_len, head_dim / 2), in fp32.
    """
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up; both are (tokens, d_ff)."""
    return functional.silu(gate) * up


def linear_cross_entropy(x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Return the mean cross-entropy in nats of x weightᵀ, in at least fp32; ignored targets do not count.

    Shapes: x is (tokens, width), weight (vocab_size, width), targets (tokens) int64.
    """
    logits = x @ weight.T
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits, targets, ignore_index=ignore_index)


DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "rms_norm": rms_norm,
    "rotary": rotary,
    "swiglu": swiglu,
    "linear_cross_entropy": linear_cross_entropy,
}
