"""The operations of `pipeline.model.fused.triton` in torch, where each one passes over memory separately."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float, addend: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return s = x, or x + addend, and its RMSNorm times `weight`."""
    total = x if addend is None else x + addend
    return total, functional.rms_norm(total, (total.shape[-1],), weight, eps)


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, addend: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, plus an addend, and that of the weight."""
    with torch.enable_grad():
        inputs = x.detach().requires_grad_(), weight.detach().requires_grad_()
        _, y = rms_norm(*inputs, eps)
    dx, dweight = torch.autograd.grad(y, inputs, dy)
    return dx if addend is None else dx + addend, dweight


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> tuple[Tensor, Tensor]:
    """Rotate pairs of q and k, of shape (batch, seq_len, heads, head_dim), by their position's angle, or back by it.

    Raises ValueError if q and k differ in more than heads.
    """
    check_alike(q, k)
    cos, sin = cos[: q.shape[1], None], (-sin if back else sin)[: q.shape[1], None]
    return _rotated(q, cos, sin), _rotated(k, cos, sin)


def check_alike(q: Tensor, k: Tensor) -> None:
    """Check that q and k, of shape (batch, seq_len, heads, head_dim), differ in heads at most; raises ValueError."""
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q and k may differ in heads alone, got shapes {tuple(q.shape)} and {tuple(k.shape)}")


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up."""
    return functional.silu(gate) * up


def swiglu_backward(
    dh: Tensor, gate: Tensor, up: Tensor, in_place: bool = False, product: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu(gate) · up and the gradients of gate and up; `in_place` and `product` are ignored."""
    with torch.enable_grad():
        inputs = gate.detach().requires_grad_(), up.detach().requires_grad_()
        h = swiglu(*inputs)
    dgate, dup = torch.autograd.grad(h, inputs, dh)
    return h.detach(), dgate, dup


def cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int, losses: Tensor, scale: Tensor | None = None
) -> None:
    """Fill `losses`; with a `scale`, overwrite the logits with the gradient of `scale` times the losses' sum."""
    with torch.enable_grad():
        inputs = logits.detach().requires_grad_(scale is not None)
        found = functional.cross_entropy(inputs.float(), targets, ignore_index=ignore_index, reduction="none")
    losses.copy_(found.detach())
    if scale is not None:
        (gradient,) = torch.autograd.grad(found, inputs, scale.expand_as(found))
        logits.copy_(gradient)


def scale(tensor: Tensor, factor: Tensor) -> None:
    """Multiply a tensor, in place, by a factor on its device."""
    tensor *= factor
