"""The eps experiment: what remains of layer norm's eps in a format, added to a variance and alone."""

import math
from typing import Any

import torch

from pipeline.stages.precision.cases import EPSILONS, FORMAT_NAMES
from pipeline.stages.precision.dtypes import TORCH_DTYPES
from pipeline.stages.precision.roundoff import FORMATS, Format
from pipeline.stages.precision.sensitivity import normalise

Row = dict[str, Any]


def measure_eps(device: torch.device, d_model: int) -> list[Row]:
    """Return a row for each format and eps: the stored value, the variance that swallows it, the norm of zeros."""
    return [_row(dtype, eps, device, d_model) for dtype in FORMAT_NAMES for eps in EPSILONS]


def _row(dtype: str, eps: float, device: torch.device, d_model: int) -> Row:
    stored = torch.tensor(eps, dtype=TORCH_DTYPES[dtype], device=device)
    # A row of zeros, such as a padding token, has variance 0: only eps prevents 0 / 0.
    zeros = torch.zeros(1, d_model, dtype=TORCH_DTYPES[dtype], device=device)
    return {
        "dtype": dtype,
        "eps": eps,
        "status": "ok",
        "stored_eps": stored.double().item(),
        "swallowed_from_variance": swallowed_from(stored, FORMATS[dtype]),
        "zeros_nonfinite_in_format": _nonfinite_share(zeros, "in_format", eps),
        "zeros_nonfinite_kernel": _nonfinite_share(zeros, "kernel", eps),
    }


def swallowed_from(stored: torch.Tensor, number_format: Format) -> float:
    """Return the smallest power of two v, or 0, with v + eps == v; `stored` is eps in the format, a scalar tensor."""
    lowest, highest = int(math.log2(number_format.smallest_subnormal)), number_format.max_exponent
    variances = torch.tensor([0.0, *(2.0**power for power in range(lowest, highest + 1))], dtype=torch.float64)
    variances = variances.to(stored.dtype).to(stored.device)
    return variances[variances + stored == variances].min().double().item()


def _nonfinite_share(x: torch.Tensor, method: str, eps: float) -> float:
    _, output = normalise(x, method, eps)
    return (~output.isfinite()).double().mean().item()
