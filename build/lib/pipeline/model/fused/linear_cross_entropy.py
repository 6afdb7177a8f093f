"""A language model's head fused with its loss: the logits exist for a chunk of tokens at a time, and only once."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations

IGNORED = -100  # as torch.nn.functional.cross_entropy has it
LOGITS_BYTES = 2_500_000_000  # of a chunk, at the most
TILE_ROWS = 256  # of the products' tiles, which a chunk should fill


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    operations: Operations,
    ignore_index: int = IGNORED,
    chunk: int | None = None,
) -> Tensor:
    """Compute the mean cross-entropy in nats of x weightᵀ and its gradients in one pass, `chunk` tokens at a time.

    Shapes: x is (..., width), weight (vocab_size, width) of its dtype, targets (...) int64. Logits are rounded to that
    dtype, as those of a Linear layer are; all that follows is in fp32, and so is the loss. The weight's gradient is
    added up by its products, in the dtype of the weight: each chunk after the first rounds it once more. Targets that
    are `ignore_index` do not count; where none counts the loss is NaN, as torch's is.

    chunk: by default `chunk_rows`. Memory: the logits of a chunk, and the gradients of x and the weight.
    """
    with_gradients = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rows = x.flatten(0, -2).contiguous()
    chunk = chunk or chunk_rows(len(rows), weight.shape[0] * x.dtype.itemsize)
    return _LinearCrossEntropy.apply(rows, weight, targets.flatten(), operations, ignore_index, chunk, with_gradients)


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Divide rows of logits evenly into chunks of at most `LOGITS_BYTES`, or of a tile: larger ones multiply faster."""
    chunks = -(-rows * row_bytes // LOGITS_BYTES)
    return TILE_ROWS * max(1, -(-rows // (max(1, chunks) * TILE_ROWS)))


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
        dweight = torch.empty_like(weight) if with_gradients else None
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            logits = x[part] @ weight.T
            if dx is None or dweight is None:
                operations.cross_entropy(logits, targets[part], ignore_index, losses[part])
                continue
            operations.cross_entropy(logits, targets[part], ignore_index, losses[part], scale)
            torch.mm(logits, weight, out=dx[part])
            # beta 0: what is there does not count, though it be NaN.
            torch.addmm(dweight, logits.T, x[part], beta=min(start, 1), out=dweight)
            del logits  # else the next chunk's would stand beside it
        if dx is not None and dweight is not None:
            ctx.save_for_backward(dx, dweight)
            ctx.operations = operations
        return losses.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        # In place: the weight's gradient is large. So autograd refuses a second backward pass, as it should.
        for gradient in gradients:
            ctx.operations.scale(gradient, dloss)
        return *gradients, None, None, None, None, None
