"""The matrix products around a block's attention, as autograd functions that keep little more than their inputs."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations


class AttentionInputs(torch.autograd.Function):
    """Compute rotated queries, rotated keys and values from the residual stream.

    `apply(x, norm_weight, q_weight, k_weight, v_weight, cos, sin, head_dim, eps, operations)` returns q, k, v, and x.
    Shapes: x is (batch, seq_len, width); q, k and v are (batch, heads, seq_len, head_dim), strided. Kept: only x; its
    norm is computed again. Use the returned x elsewhere: its gradient is then added in the norm's kernel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm_weight: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        v_weight: Tensor,
        cos: Tensor,
        sin: Tensor,
        head_dim: int,
        eps: float,
        operations: Operations,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute q, k and v; keep x."""
        ctx.save_for_backward(x, norm_weight, q_weight, k_weight, v_weight, cos, sin)
        ctx.eps, ctx.operations = eps, operations
        _, y = operations.rms_norm(x.flatten(0, 1), norm_weight, eps)
        q, k, v = ((y @ weight.T).view(*x.shape[:2], -1, head_dim) for weight in (q_weight, k_weight, v_weight))
        q, k = operations.rotate(q, k, cos, sin)
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor, dx: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of x and the weights; dx is the gradient of the returned x."""
        x, norm_weight, *weights, cos, sin = ctx.saved_tensors
        rows = x.flatten(0, 1)
        _, y = ctx.operations.rms_norm(rows, norm_weight, ctx.eps)
        dq, dk, dv = (gradient.transpose(1, 2) for gradient in (dq, dk, dv))
        dq, dk = ctx.operations.rotate(dq, dk, cos, sin, back=True)
        gradients = [gradient.reshape(len(rows), -1) for gradient in (dq, dk, dv)]
        dweights = [gradient.T @ y for gradient in gradients]
        dy = y  # reuse its memory: y is no longer needed
        torch.mm(gradients[0], weights[0], out=dy)
        for gradient, weight in zip(gradients[1:], weights[1:], strict=True):
            dy.addmm_(gradient, weight)
        total, dnorm = ctx.operations.rms_norm_backward(dy, rows, norm_weight, ctx.eps, _rows_of(dx))
        return total.view_as(x), dnorm, *dweights, None, None, None, None, None


class OutputProjection(torch.autograd.Function):
    """Multiply the heads' outputs by a weight: `apply(heads, weight)`.

    Shapes: heads is (batch, heads, seq_len, head_dim), the result (batch, seq_len, width). Kept: the heads in the
    layout that attention keeps too, so they are kept once; the copy with each token's heads side by side is made again.
    """

    @staticmethod
    def forward(ctx: Any, heads: Tensor, weight: Tensor) -> Tensor:
        """Compute the product; keep the heads."""
        ctx.save_for_backward(heads, weight)
        return _side_by_side(heads) @ weight.T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutput: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the gradients of the heads and the weight."""
        heads, weight = ctx.saved_tensors
        drows = _rows_of(doutput)
        dweight = drows.T @ _side_by_side(heads).flatten(0, 1)
        dheads = (drows @ weight).view(heads.transpose(1, 2).shape).transpose(1, 2)
        return dheads, dweight


def _side_by_side(heads: Tensor) -> Tensor:
    return heads.transpose(1, 2).flatten(-2)


def _rows_of(tensor: Tensor) -> Tensor:
    return tensor.flatten(0, 1).contiguous()
