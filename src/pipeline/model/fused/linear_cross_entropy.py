"""A language model's head fused with its loss: logits exist for one chunk of tokens at a time, in a single copy."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.model.fused.operations import Operations

IGNORED = -100  # the default of torch.nn.functional.cross_entropy
LOGITS_BYTES = 2_500_000_000  # per chunk, before rounding up to whole tiles
TILE_ROWS = 256  # rows of a matrix product's tile, which a chunk should fill


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    operations: Operations,
    ignore_index: int = IGNORED,
    chunk: int | None = None,
) -> Tensor:
    """Compute the mean cross-entropy in nats of x weightᵀ and its gradients in one pass, `chunk` tokens at a time.

    Shapes: x is (..., width), weight (vocab_size, width) in x's dtype, targets (...) int64. Logits are rounded to that
    dtype, like a Linear layer's; everything after that, including the loss, is in fp32. The matrix products accumulate
    the weight's gradient in the weight's dtype: each chunk after the first rounds it once more. Targets equal to
    `ignore_index` do not count; if none counts, the loss is NaN, as torch's is.

    chunk: by default `chunk_rows`. Memory: the logits of a chunk, and the gradients of x and the weight.
    """
    with_gradients = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    rows = x.flatten(0, -2).contiguous()
    chunk = chunk or chunk_rows(len(rows), weight.shape[0] * x.dtype.itemsize)
    return _LinearCrossEntropy.apply(rows, weight, targets.flatten(), operations, ignore_index, chunk, with_gradients)


def chunk_rows(rows: int, row_bytes: int) -> int:
    """Return the rows of each chunk when rows of logits are divided evenly into chunks of up to `LOGITS_BYTES`.

    They are rounded up to whole tiles. Chunks are that large because larger ones multiply faster.
    """
    chunks = -(-rows * row_bytes // LOGITS_BYTES)
    return TILE_ROWS * max(1, -(-rows // (max(1, chunks) * TILE_ROWS)))


class _LinearCrossEntropy(torch.autograd.Function):
    """Compute the gradients together with the loss, while the logits exist; the backward pass only scales them."""

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
            # The first chunk has beta 0, which ignores what is there, even NaN.
            torch.addmm(dweight, logits.T, x[part], beta=min(start, 1), out=dweight)
            del logits  # else two chunks' logits would exist at once
        if dx is not None and dweight is not None:
            ctx.save_for_backward(dx, dweight)
            ctx.operations = operations
        return losses.sum() * scale

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.saved_tensors
        # In place, because the weight's gradient is large; autograd then rightly refuses a second backward pass.
        for gradient in gradients:
            ctx.operations.scale(gradient, dloss)
        return *gradients, None, None, None, None, None
