"""Compute in another dtype than the parameters': convert arguments and replicated parameters."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from pipeline.compat.torch_private import parameters_of


def cast_arguments(args: tuple, kwargs: Mapping[str, Any], dtype: torch.dtype) -> tuple[tuple, dict[str, Any]]:
    """Convert the floating-point tensors among the arguments."""
    return tuple(_cast(value, dtype) for value in args), {name: _cast(value, dtype) for name, value in kwargs.items()}


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def cast_replicated(modules: Iterable[nn.Module], replicated: Collection[Parameter], dtype: torch.dtype) -> None:
    """Let modules see their replicated parameters in another dtype during a forward pass.

    The conversion is part of autograd's graph: gradients arrive in the parameters' own dtype.
    """
    for module in modules:
        own = parameters_of(module)
        kept = {name: value for name, value in own.items() if value in replicated and value.is_floating_point()}
        if not kept:
            continue

        def before(_: nn.Module, args: tuple, kwargs: dict, own: dict = own, kept: dict = kept) -> tuple[tuple, dict]:
            own.update({name: value.to(dtype) for name, value in kept.items()})
            return cast_arguments(args, kwargs, dtype)

        def after(_: nn.Module, args: tuple, output: Any, own: dict = own, kept: dict = kept) -> None:
            own.update(kept)

        module.register_forward_pre_hook(before, with_kwargs=True)
        module.register_forward_hook(after, always_call=True)
