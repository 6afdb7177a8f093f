"""Layer norm written out step by step, so that the format of each intermediate value is known.

mean = sum(x) / n, variance = sum((x - mean)^2) / n, output = (x - mean) / sqrt(variance + eps): J. L. Ba, J. R. Kiros
and G. E. Hinton, Layer Normalization, arXiv:1607.06450, without gain and bias.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass(frozen=True)
class Normalised:
    """Statistics of each row, (rows, 1), and the normalised rows, (rows, features)."""

    mean: torch.Tensor
    variance: torch.Tensor
    output: torch.Tensor


def layer_norm_in_format(x: torch.Tensor, eps: float) -> Normalised:
    """Normalise the rows of x, (rows, features), with every value and every running sum rounded to x's format."""
    return _layer_norm(x, eps, _running_sum)


def layer_norm_with_sums_in(dtype: torch.dtype, x: torch.Tensor, eps: float) -> Normalised:
    """Normalise the rows of x, (rows, features), with both sums in `dtype` and everything else in x's format."""
    return _layer_norm(x, eps, lambda values: values.sum(-1, keepdim=True, dtype=dtype))


def layer_norm_in_fp64(x: torch.Tensor, eps: float) -> Normalised:
    """Normalise the rows of x in fp64: the reference for all other methods."""
    return layer_norm_with_sums_in(torch.float64, x.double(), eps)


def torch_layer_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Normalise the rows of x with torch's kernel; the output has x's format."""
    return functional.layer_norm(x, x.shape[-1:], eps=eps)


def _layer_norm(x: torch.Tensor, eps: float, summed: Callable[[torch.Tensor], torch.Tensor]) -> Normalised:
    features = x.shape[-1]
    mean = (summed(x) / features).to(x.dtype)
    centred = x - mean
    variance = (summed(centred.square()) / features).to(x.dtype)
    # A tensor, because a Python number would be added in fp32, not in x's format.
    stored_eps = torch.tensor(eps, dtype=x.dtype, device=x.device)
    return Normalised(mean, variance, centred * torch.rsqrt(variance + stored_eps))


def _running_sum(values: torch.Tensor) -> torch.Tensor:
    """Add the columns one by one: torch's own sum of fp16 or bf16 keeps its running sum in fp32."""
    total = torch.zeros_like(values[:, :1])
    for column in values.split(1, dim=-1):
        total += column
    return total
