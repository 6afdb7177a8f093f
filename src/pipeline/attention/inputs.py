"""Check the inputs of the attention functions before anything is computed, and cast them under autocast."""

from collections.abc import Collection
from typing import NamedTuple

import torch
from torch import Tensor


class Traits(NamedTuple):
    """Everything about a tensor except its values; what is decided from them holds for all tensors that share them."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def traits(tensor: Tensor) -> Traits:
    """Return a tensor's traits."""
    return Traits(tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def check_inputs(q: Traits, k: Traits, v: Traits, dtypes: Collection[torch.dtype], enable_gqa: bool = False) -> None:
    """Check the shapes, dtypes and devices of queries, keys and values.

    Shapes: q is (batch, n_queries, head_dim) or (batch, heads, n_queries, head_dim), k and v the same with n_keys;
    with enable_gqa their number of heads may be any divisor of q's.
    Raises ValueError with one line that names the tensor, what it is and what is allowed.
    """
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        if len(tensor.shape) not in (3, 4):
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: "
                "must be (batch, seq, head_dim) or (batch, heads, seq, head_dim)"
            )
        if 0 in tensor.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: must not be empty")
        if tensor.dtype not in dtypes:
            raise ValueError(f"{name} is {_name(tensor.dtype)}: must be one of {', '.join(map(_name, dtypes))}")
        if (tensor.dtype, tensor.device) != (q.dtype, q.device):
            raise ValueError(
                f"{name} is {_name(tensor.dtype)} on {tensor.device}: must be as q, {_name(q.dtype)} on {q.device}"
            )
    if v.shape != k.shape:
        raise ValueError(f"v has shape {tuple(v.shape)}: must be as k, {tuple(k.shape)}")
    wanted, but_for = list(q.shape), "the sequence"
    if enable_gqa and len(q.shape) == len(k.shape) == 4:
        if q.shape[1] % k.shape[1]:
            raise ValueError(f"k has {k.shape[1]} heads: must be a number that divides q's, {q.shape[1]}")
        wanted[1], but_for = k.shape[1], "heads and sequence"
    if (*k.shape[:-2], k.shape[-1]) != (*wanted[:-2], wanted[-1]):
        raise ValueError(f"k has shape {tuple(k.shape)}: must be as q, {tuple(q.shape)}, except for {but_for}")


def under_autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cast inputs as autocast does for a low-precision operation: all floating-point ones except fp64."""
    device_type = q.device.type
    if not torch.is_autocast_enabled(device_type):
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    q, k, v = (x.to(dtype) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (q, k, v))
    return q, k, v


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
