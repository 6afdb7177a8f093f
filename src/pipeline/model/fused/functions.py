"""The fused model's operations as separate autograd functions, for models whose blocks are not fused in halves."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations


class AddRMSNorm(torch.autograd.Function):
    """Compute the RMSNorm of x + residual, and the sum: `apply(x, residual, weight, eps, operations)`.

    Shapes: x and residual are (tokens, width). Kept: only the sum. Use the returned sum elsewhere: its gradient is then
    added in the norm's kernel.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor, eps: float, operations: Operations
    ) -> tuple[Tensor, Tensor]:
        """Compute norm and sum; keep the sum."""
        total, y = operations.rms_norm(x, weight, eps, residual)
        ctx.save_for_backward(total, weight)
        ctx.eps, ctx.operations = eps, operations
        return y, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradient of both addends, which is the same, and that of the weight."""
        total, weight = ctx.saved_tensors
        dx, dweight = ctx.operations.rms_norm_backward(dy.contiguous(), total, weight, ctx.eps, dtotal.contiguous())
        return dx, dx, dweight, None, None


class Rotary(torch.autograd.Function):
    """Rotate queries and keys: `apply(q, k, cos, sin, operations)`; they are (batch, heads, seq_len, head_dim)."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, operations: Operations
    ) -> tuple[Tensor, Tensor]:
        """Rotate; keep the tables."""
        ctx.save_for_backward(cos, sin)
        ctx.operations = operations
        q, k = operations.rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        """Rotate back."""
        cos, sin = ctx.saved_tensors
        dq, dk = ctx.operations.rotate(dq.transpose(1, 2), dk.transpose(1, 2), cos, sin, back=True)
        return dq.transpose(1, 2), dk.transpose(1, 2), None, None, None


class SwiGLUProduct(torch.autograd.Function):
    """Compute silu(gate) · up: `apply(gate, up, operations)`."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, operations: Operations) -> Tensor:
        """Compute the product; keep both factors."""
        ctx.save_for_backward(gate, up)
        ctx.operations = operations
        return operations.swiglu(gate, up)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of both factors."""
        _, dgate, dup = ctx.operations.swiglu_backward(dh.contiguous(), *ctx.saved_tensors, product=False)
        return dgate, dup, None
