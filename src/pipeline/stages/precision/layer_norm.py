"""The layer-norm experiments: where statistics overflow, vanish or lose accuracy, and what remains of eps.

Layer norm is written out step by step, so that the format of each intermediate value is known: mean = sum(x) / n,
variance = sum((x - mean)^2) / n, output = (x - mean) / sqrt(variance + eps) (J. L. Ba, J. R. Kiros and G. E. Hinton,
Layer Normalization, arXiv:1607.06450, without gain and bias).

There are two kinds of input. `normal`: seeded normal random rows, at magnitudes from far below to far above one.
`alternating`: +1, -1, +1, ..., whose squares are all one, so that unit roundoff predicts their sum exactly.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from pipeline.stages.precision.accumulation import TORCH_DTYPES
from pipeline.stages.precision.cases import DEFAULT_EPS, EPSILONS, FORMAT_NAMES, MAGNITUDE_EXPONENTS, METHODS, WIDTHS
from pipeline.stages.precision.roundoff import FORMATS, Format

SEED = 0

Row = dict[str, Any]


@dataclass(frozen=True)
class Normalised:
    """Normalised rows, (..., features), and their statistics, (..., 1), which torch's kernel does not return."""

    output: Tensor
    mean: Tensor | None = None
    variance: Tensor | None = None


def normalise(x: Tensor, method: str, eps: float) -> Normalised:
    """Normalise rows, (..., features), by one of `METHODS`, or by `fp64`: the reference for all others."""
    if method == "kernel":
        return Normalised(functional.layer_norm(x, x.shape[-1:], eps=eps))
    if method == "fp64":
        x = x.double()
    dtype = {"fp32_sums": torch.float32, "fp64": torch.float64}.get(method)
    summed: Callable[[Tensor], Tensor] = (
        partial(torch.sum, dim=-1, keepdim=True, dtype=dtype) if dtype else _running_sum
    )
    features = x.shape[-1]
    mean = (summed(x) / features).to(x.dtype)
    centred = x - mean
    variance = (summed(centred.square()) / features).to(x.dtype)
    # A tensor, because a Python number would be added in fp32, not in x's format.
    stored_eps = torch.tensor(eps, dtype=x.dtype, device=x.device)
    return Normalised(centred * torch.rsqrt(variance + stored_eps), mean, variance)


def _running_sum(values: Tensor) -> Tensor:
    """Add the columns one by one: torch's own sum of fp16 or bf16 keeps its running sum in fp32."""
    total = torch.zeros_like(values[..., :1])
    for column in values.split(1, dim=-1):
        total += column
    return total


def measure_layer_norm(device: torch.device, input_rows: int, d_model: int) -> list[Row]:
    """Return a row for each format, method and input: shares of lost rows, measured and predicted, and errors."""
    generator = torch.Generator().manual_seed(SEED)
    normal = torch.randn(input_rows, d_model, dtype=torch.float64, generator=generator)
    alternating = {width: torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(1, width // 2) for width in WIDTHS}
    rows = []
    for dtype in FORMAT_NAMES:
        held = FORMATS[dtype].overflow_threshold / normal.abs().max().item()
        magnitudes = [2.0**exponent for exponent in MAGNITUDE_EXPONENTS if 2.0**exponent < held]
        for method in METHODS:
            rows += _rows("normal", normal, magnitudes, dtype, method, device)
            for unit in alternating.values():
                rows += _rows("alternating", unit, [1.0], dtype, method, device)
    return rows


def _rows(kind: str, unit: Tensor, magnitudes: list[float], dtype: str, method: str, device: torch.device) -> list[Row]:
    """Normalise rows, given at magnitude one, at all magnitudes at once; compare each with the fp64 reference.

    There are no predictions for torch's kernel, which does not document how it sums.
    """
    x = torch.stack([unit * magnitude for magnitude in magnitudes]).to(TORCH_DTYPES[dtype]).to(device)
    seen, reference = normalise(x, method, DEFAULT_EPS), normalise(x, "fp64", DEFAULT_EPS)
    keys = {"dtype": dtype, "method": method, "input": kind, "d_model": unit.shape[-1]}
    predicts = kind == "normal" and method != "kernel"
    return [
        {
            **keys,
            "magnitude": magnitude,
            "status": "ok",
            **(_predicted_losses(unit, dtype, method, magnitude) if predicts else {}),
            **_statistics_errors(seen, reference, number),
            **_output_errors(seen.output[number], reference.output[number], FORMATS[dtype]),
        }
        for number, magnitude in enumerate(magnitudes)
    ]


def limits(unit: Tensor, dtype: str, method: str) -> tuple[Tensor, Tensor]:
    """Predict from which magnitude the variance of each row overflows, and up to which it vanishes.

    Only the format's range counts: the variance overflows if the largest square exceeds the format's largest number, or
    if the sum of squares exceeds that of the sum's format. It vanishes if it rounds to zero. Other rounding is ignored.
    unit: the rows at magnitude one, (rows, features), fp64.
    """
    squares = (unit - unit.mean(-1, keepdim=True)).square()
    sums = FORMATS[dtype if method == "in_format" else "fp32"]
    by_square = FORMATS[dtype].overflow_threshold / squares.amax(-1)
    by_sum = sums.overflow_threshold / squares.sum(-1)
    vanishes_up_to = (FORMATS[dtype].smallest_subnormal / 2 / squares.mean(-1)).sqrt()
    return torch.minimum(by_square, by_sum).sqrt(), vanishes_up_to


def _predicted_losses(unit: Tensor, dtype: str, method: str, magnitude: float) -> Row:
    """Return the predicted limits of the magnitude, and the shares of rows lost at this magnitude."""
    overflows_from, vanishes_up_to = limits(unit, dtype, method)
    return {
        "predicted_overflow_magnitude": overflows_from.min().item(),
        "predicted_overflow_share": _share(overflows_from <= magnitude),
        "predicted_vanish_magnitude": vanishes_up_to.max().item(),
        "predicted_vanish_share": _share(vanishes_up_to >= magnitude),
    }


def _output_errors(output: Tensor, reference: Tensor, number_format: Format) -> Row:
    """Return errors of an output, None if any value is not finite, and the shares of rows that are lost.

    output_half_spacing: half the format's spacing at the largest output, the error of rounding only the output.
    """
    finite = bool(output.isfinite().all())
    return {
        "output_max_error": (output.double() - reference).abs().max().item() if finite else None,
        "output_half_spacing": number_format.spacing(reference.abs().max().item()) / 2,
        "output_zero_share": _share((output == 0).all(-1)),
        "output_nonfinite_share": _share(~output.isfinite().all(-1)),
    }


def _statistics_errors(seen: Normalised, reference: Normalised, number: int) -> Row:
    if seen.mean is None or seen.variance is None or reference.mean is None or reference.variance is None:
        return {}
    variance, mean = seen.variance[number].double(), seen.mean[number].double()
    true_variance = reference.variance[number]
    ratio = variance / true_variance
    return {
        "overflow_share": _share(~variance.isfinite()),
        "vanish_share": _share(variance == 0),
        "variance_ratio": _median(ratio),
        "variance_rel_error": _median((ratio - 1).abs()),
        "mean_error_over_std": _median((mean - reference.mean[number]).abs() / true_variance.sqrt()),
    }


def _median(values: Tensor) -> float | None:
    return values.median().item() if values.isfinite().all() else None


def _share(mask: Tensor) -> float:
    return mask.double().mean().item()


def measure_eps(device: torch.device, d_model: int) -> list[Row]:
    """Return a row for each format and eps: its stored value, the variance that swallows it, layer norm of zeros."""
    rows = []
    for dtype in FORMAT_NAMES:
        # A row of zeros, such as a padding token, has variance 0: only eps prevents 0 / 0.
        zeros = torch.zeros(1, d_model, dtype=TORCH_DTYPES[dtype], device=device)
        for eps in EPSILONS:
            stored = torch.tensor(eps, dtype=TORCH_DTYPES[dtype], device=device)
            seen = {
                "stored_eps": stored.double().item(),
                "swallowed_from_variance": swallowed_from(stored, FORMATS[dtype]),
            }
            for method in ("in_format", "kernel"):
                seen[f"zeros_nonfinite_{method}"] = _share(~normalise(zeros, method, eps).output.isfinite())
            rows.append({"dtype": dtype, "eps": eps, "status": "ok", **seen})
    return rows


def swallowed_from(stored: Tensor, number_format: Format) -> float:
    """Return the smallest power of two v, or 0, with v + eps == v; `stored` is eps in the format, a scalar tensor."""
    lowest, highest = int(math.log2(number_format.smallest_subnormal)), number_format.max_exponent
    variances = torch.tensor([0.0, *(2.0**power for power in range(lowest, highest + 1))], dtype=torch.float64)
    variances = variances.to(stored.dtype).to(stored.device)
    return variances[variances + stored == variances].min().double().item()
