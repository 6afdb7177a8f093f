"""A block's feed-forward half, with the residual sums before and after it, as one autograd function."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations


class FeedForward(torch.autograd.Function):
    """Compute s + down(silu(gate(norm(s))) · up(norm(s))), where s = x + addend.

    `apply(x, addend, norm_weight, gate_weight, up_weight, down_weight, eps, keeps_products, is_rerun, operations)`.
    Shapes: x, addend and the result are (batch, seq_len, width). Kept: s, and with `keeps_products` the outputs of
    gate and up, each d_ff / width times as large; else both products are computed again. Norm and SwiGLU always are.
    is_rerun: a checkpointed block runs again only for what it keeps; its unused result is not computed.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        addend: Tensor,
        norm_weight: Tensor,
        gate_weight: Tensor,
        up_weight: Tensor,
        down_weight: Tensor,
        eps: float,
        keeps_products: bool,
        is_rerun: bool,
        operations: Operations,
    ) -> Tensor:
        """Compute the result; keep the sum, and the products if asked to."""
        total, y = operations.rms_norm(x.flatten(0, 1), norm_weight, eps, addend.flatten(0, 1))
        products: tuple[Tensor, ...] = ()
        output = torch.empty_like(x)  # not a view of `addmm`'s result: a module's hooks may forbid views
        if not is_rerun:
            products = y @ gate_weight.T, y @ up_weight.T
            torch.addmm(total, operations.swiglu(*products), down_weight.T, out=output.flatten(0, 1))
        kept = products if keeps_products else ()
        ctx.save_for_backward(total, norm_weight, gate_weight, up_weight, down_weight, *kept)
        ctx.shape, ctx.eps, ctx.operations = x.shape, eps, operations
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, doutput: Tensor) -> tuple[Tensor | None, ...]:
        """Compute the gradients of both addends, which are the same, and of the weights."""
        total, norm_weight, gate_weight, up_weight, down_weight, *products = ctx.saved_tensors
        doutput = doutput.flatten(0, 1).contiguous()
        _, y = ctx.operations.rms_norm(total, norm_weight, ctx.eps)
        gate, up = products or (y @ gate_weight.T, y @ up_weight.T)
        h, dgate, dup = ctx.operations.swiglu_backward(doutput @ down_weight, gate, up, in_place=not products)
        ddown = doutput.T @ h
        del h, gate, up
        dgate_weight, dup_weight = dgate.T @ y, dup.T @ y
        dy = torch.mm(dgate, gate_weight, out=y)  # reuse its memory: y is no longer needed
        dy.addmm_(dup, up_weight)
        dtotal, dnorm = ctx.operations.rms_norm_backward(dy, total, norm_weight, ctx.eps, doutput)
        dtotal = dtotal.view(ctx.shape)
        return dtotal, dtotal, dnorm, dgate_weight, dup_weight, ddown, None, None, None, None
