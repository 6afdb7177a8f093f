"""The operations between a fused model's matrix products, as Triton kernels or torch operations."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from types import ModuleType

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operations:
    """The operations; see `pipeline.model.fused.triton` for what each takes and returns."""

    rms_norm: Callable[..., tuple[Tensor, Tensor]]
    rms_norm_backward: Callable[..., tuple[Tensor, Tensor]]
    rotate: Callable[..., tuple[Tensor, Tensor]]
    swiglu: Callable[[Tensor, Tensor], Tensor]
    swiglu_backward: Callable[..., tuple[Tensor, Tensor, Tensor]]
    cross_entropy: Callable[..., None]
    scale: Callable[[Tensor, Tensor], None]


def in_triton() -> Operations:
    """Return the Triton operations, which need a GPU or Triton's interpreter."""
    from pipeline.model.fused.triton import cross_entropy, rms_norm, rotary, swiglu

    return _named_in(cross_entropy, rms_norm, rotary, swiglu)


def in_torch() -> Operations:
    """Return the operations in plain torch."""
    from pipeline.model.fused import plain

    return _named_in(plain)


def _named_in(*modules: ModuleType) -> Operations:
    """Collect the operations from modules, by their names."""
    functions = {name: function for module in modules for name, function in vars(module).items()}
    return Operations(**{item.name: functions[item.name] for item in fields(Operations)})


def best_operations(device: torch.device) -> Operations:
    """Return the Triton operations on a GPU, else those in torch."""
    return in_triton() if device.type == "cuda" else in_torch()
