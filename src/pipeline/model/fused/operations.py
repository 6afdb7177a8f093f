"""What a fused model computes between its matrix products, by Triton kernels or by torch's own operations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operations:
    """The operations; `pipeline.model.fused.triton` says what each of them takes and returns."""

    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rms_norm_backward: Callable[..., tuple[Tensor, Tensor]]
    rotate: Callable[..., Tensor]
    swiglu: Callable[[Tensor, Tensor], Tensor]
    swiglu_backward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    cross_entropy: Callable[..., None]
    scale: Callable[[Tensor, Tensor], None]


def in_triton() -> Operations:
    """Return those of Triton, which need a GPU or its interpreter."""
    from pipeline.model.fused.triton import cross_entropy, rms_norm, rotary, swiglu

    return Operations(
        rms_norm=rms_norm.rms_norm,
        rms_norm_backward=rms_norm.rms_norm_backward,
        rotate=rotary.rotate,
        swiglu=swiglu.swiglu,
        swiglu_backward=swiglu.swiglu_backward,
        cross_entropy=cross_entropy.cross_entropy,
        scale=cross_entropy.scale,
    )


def in_torch() -> Operations:
    """Return those of torch's own operations, one after the other."""
    from pipeline.model.fused import plain

    return Operations(
        rms_norm=plain.rms_norm,
        rms_norm_backward=plain.rms_norm_backward,
        rotate=plain.rotate,
        swiglu=plain.swiglu,
        swiglu_backward=plain.swiglu_backward,
        cross_entropy=plain.cross_entropy,
        scale=plain.scale,
    )


def best_operations(device: torch.device) -> Operations:
    """Return those of Triton where there is a GPU."""
    return in_triton() if device.type == "cuda" else in_torch()
