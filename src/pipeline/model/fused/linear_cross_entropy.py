"""A language model's head fused with its loss: the logits exist for a chunk of tokens at a time, and only once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations

IGNORED = -100  # as torch.nn.functional.cross_entropy has it
CHUNK = 4096


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    operations: Operations,
    ignore_index: int = IGNORED,
    chunk: int = CHUNK,
) -> Tensor:
    """Compute the mean cross-entropy in nats of x weightᵀ and its gradients in one pass, `chunk` tokens at a time.

    Shapes: x is (..., width), weight (vocab_size, width) of its dtype, targets (...) int64. Logits are rounded to that
    dtype, as those of a Linear layer are; all that follows is in fp32, and so is the loss. Gradients of chunks are
    added up in fp32. Targets that are `ignore_index` do not count; where none counts the loss is NaN, as torch's is.

    Memory: the logits of a chunk, and the weight's gradient once in fp32 and once in the weight's dtype.
    """
    with_gradients = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rows = x.flatten(0, -2).contiguous()
    return _LinearCrossEntropy.apply(rows, weight, targets.flatten(), operations, ignore_index, chunk, with_gradients)


class _LinearCrossEntropy(torch.autograd.Function):
    """The gradients are computed with the loss, while the logits are there, and scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        targets: Tensor,
        operations: Operations,
        ignore_index: int,
        chunk: int,
        with_gradients: bool,
    ) -> Tensor:
        scale = 1 / (targets != ignore_index).sum().float()
        losses = torch.empty(targets.shape, dtype=torch.float32, device=x.device)
        dx = torch.empty_like(x) if with_gradients else None
        dweight = torch.zeros(weight.shape, dtype=torch.float32, device=x.device) if with_gradients else None
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            logits = x[part] @ weight.T
            if dx is None or dweight is None:
                operations.cross_entropy(logits, targets[part], ignore_index, losses[part])
                continue
            operations.cross_entropy(logits, targets[part], ignore_index, losses[part], scale)
            torch.mm(logits, weight, out=dx[part])
            dweight += logits.T @ x[part]
            del logits  # else the next chunk's would stand beside it
        if dx is not None and dweight is not None:
            ctx.save_for_backward(dx, dweight)
        return losses.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        dx, dweight = ctx.saved_tensors
        # In place: the weight's gradient is large. So autograd refuses a second backward pass, as it should.
        dweight *= dloss
        return (dx.float() * dloss).to(dx.dtype), dweight.to(dx.dtype), None, None, None, None, None
