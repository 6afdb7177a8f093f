"""What a fused model computes between its matrix products, by Triton kernels or by torch's own operations."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType

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

    return _named_in(cross_entropy, rms_norm, rotary, swiglu)


def in_torch() -> Operations:
    """Return those of torch's own operations, one after the other."""
    from pipeline.model.fused import plain

    return _named_in(plain)


def _named_in(*modules: ModuleType) -> Operations:
    """Return the operations that have these names in modules."""
    functions = {name: function for module in modules for name, function in vars(module).items()}
    return Operations(**{item.name: functions[item.name] for item in fields(Operations)})


def best_operations(device: torch.device) -> Operations:
    """Return those of Triton where there is a GPU."""
    return in_triton() if device.type == "cuda" else in_torch()
