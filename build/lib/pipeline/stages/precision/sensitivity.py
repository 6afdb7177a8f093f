"""The layer-norm experiment: where its statistics overflow, vanish or lose accuracy, by format and method.

There are two kinds of input. `normal`: seeded normal random rows, at magnitudes from far below to far above one.
`alternating`: +1, -1, +1, ..., whose squares are all one, so that unit roundoff predicts their sum exactly.
"""

from dataclasses import dataclass
from typing import Any

import torch

from pipeline.stages.precision.cases import DEFAULT_EPS, FORMAT_NAMES, MAGNITUDE_EXPONENTS, METHODS, WIDTHS
from pipeline.stages.precision.dtypes import TORCH_DTYPES
from pipeline.stages.precision.layer_norm import (
    Normalised,
    layer_norm_in_format,
    layer_norm_in_fp64,
    layer_norm_with_sums_in,
    torch_layer_norm,
)
from pipeline.stages.precision.roundoff import FORMATS

SEED = 0

Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """For each row, given at magnitude one: where its variance starts to overflow, and up to where it vanishes."""

    overflows_from: torch.Tensor
    vanishes_up_to: torch.Tensor


def measure_layer_norm(device: torch.device, input_rows: int, d_model: int) -> list[Row]:
    """Return a row for each format, method and input: shares of lost rows, measured and predicted, and errors."""
    generator = torch.Generator().manual_seed(SEED)
    normal = torch.randn(input_rows, d_model, dtype=torch.float64, generator=generator)
    rows = []
    for dtype in FORMAT_NAMES:
        for method in METHODS:
            rows += _magnitude_rows(normal, dtype, method, device)
            rows += [_width_row(width, dtype, method, device) for width in WIDTHS]
    return rows


def normalise(x: torch.Tensor, method: str, eps: float) -> tuple[Normalised | None, torch.Tensor]:
    """Normalise rows by one of `METHODS`; return the statistics, None for torch's kernel, and the output."""
    if method == "kernel":
        return None, torch_layer_norm(x, eps)
    in_format = method == "in_format"
    normalised = layer_norm_in_format(x, eps) if in_format else layer_norm_with_sums_in(torch.float32, x, eps)
    return normalised, normalised.output


def limits(unit: torch.Tensor, dtype: str, method: str) -> Limits:
    """Predict from the format's range alone at which magnitudes the variance of scaled rows is lost.

    It overflows if the largest square exceeds the format's largest number, or if the sum of squares exceeds that of the
    sum's format. It vanishes if the variance rounds to zero. Other rounding is ignored.
    unit: the rows at magnitude one, (rows, features), fp64.
    """
    squares = (unit - unit.mean(-1, keepdim=True)).square()
    sums = FORMATS[dtype if method == "in_format" else "fp32"]
    by_square = FORMATS[dtype].overflow_threshold / squares.amax(-1)
    by_sum = sums.overflow_threshold / squares.sum(-1)
    return Limits(
        overflows_from=torch.minimum(by_square, by_sum).sqrt(),
        vanishes_up_to=(FORMATS[dtype].smallest_subnormal / 2 / squares.mean(-1)).sqrt(),
    )


def _magnitude_rows(unit: torch.Tensor, dtype: str, method: str, device: torch.device) -> list[Row]:
    """Normalise the input, in one batch, at every magnitude that the format can hold."""
    magnitudes = [2.0**exponent for exponent in MAGNITUDE_EXPONENTS if _holds(dtype, unit, 2.0**exponent)]
    x = torch.cat([unit * magnitude for magnitude in magnitudes]).to(TORCH_DTYPES[dtype]).to(device)
    statistics, output = normalise(x, method, DEFAULT_EPS)
    parts = _split(statistics, output, layer_norm_in_fp64(x, DEFAULT_EPS), len(magnitudes))
    return [
        {
            **_keys(dtype, method, "normal", unit.shape[-1], magnitude),
            **_predicted_losses(unit, dtype, method, magnitude),
            **_errors(dtype, *part),
        }
        for magnitude, part in zip(magnitudes, parts, strict=True)
    ]


def _holds(dtype: str, unit: torch.Tensor, magnitude: float) -> bool:
    return unit.abs().max().item() * magnitude < FORMATS[dtype].overflow_threshold


def _width_row(width: int, dtype: str, method: str, device: torch.device) -> Row:
    x = torch.ones(1, width, dtype=TORCH_DTYPES[dtype], device=device)
    x[:, 1::2] = -1
    statistics, output = normalise(x, method, DEFAULT_EPS)
    return {
        **_keys(dtype, method, "alternating", width, 1.0),
        **_errors(dtype, statistics, output, layer_norm_in_fp64(x, DEFAULT_EPS)),
    }


def _keys(dtype: str, method: str, kind: str, d_model: int, magnitude: float) -> Row:
    names = {"dtype": dtype, "method": method, "input": kind, "d_model": d_model, "magnitude": magnitude}
    return {**names, "status": "ok"}


def _predicted_losses(unit: torch.Tensor, dtype: str, method: str, magnitude: float) -> Row:
    """Return the predicted limits of the magnitude, and the shares of rows lost at this magnitude.

    Empty for torch's kernel, which does not document how it sums.
    """
    if method == "kernel":
        return {}
    predicted = limits(unit, dtype, method)
    return {
        "predicted_overflow_magnitude": predicted.overflows_from.min().item(),
        "predicted_overflow_share": _share(predicted.overflows_from <= magnitude),
        "predicted_vanish_magnitude": predicted.vanishes_up_to.max().item(),
        "predicted_vanish_share": _share(predicted.vanishes_up_to >= magnitude),
    }


def _split(
    statistics: Normalised | None, output: torch.Tensor, reference: Normalised, parts: int
) -> list[tuple[Normalised | None, torch.Tensor, Normalised]]:
    """Cut a batch into equal parts."""

    def cut(batch: Normalised) -> list[Normalised]:
        columns = (tensor.chunk(parts) for tensor in (batch.mean, batch.variance, batch.output))
        return [Normalised(*three) for three in zip(*columns, strict=True)]

    shown = [None] * parts if statistics is None else cut(statistics)
    return list(zip(shown, output.chunk(parts), cut(reference), strict=True))


def _errors(dtype: str, statistics: Normalised | None, output: torch.Tensor, reference: Normalised) -> Row:
    """Compare with the fp64 reference; an error is None if any value is not finite.

    output_half_spacing: half the format's spacing at the largest output, the error of rounding only the output.
    """
    finite = bool(output.isfinite().all())
    return {
        **({} if statistics is None else _statistics_errors(statistics, reference)),
        "output_max_error": (output.double() - reference.output).abs().max().item() if finite else None,
        "output_half_spacing": FORMATS[dtype].spacing(reference.output.abs().max().item()) / 2,
        "output_zero_share": _share((output == 0).all(-1)),
        "output_nonfinite_share": _share(~output.isfinite().all(-1)),
    }


def _statistics_errors(statistics: Normalised, reference: Normalised) -> Row:
    variance, mean = statistics.variance.double(), statistics.mean.double()
    ratio = variance / reference.variance
    mean_error = (mean - reference.mean).abs() / reference.variance.sqrt()
    return {
        "overflow_share": _share(~variance.isfinite()),
        "vanish_share": _share(variance == 0),
        "variance_ratio": _median(ratio),
        "variance_rel_error": _median((ratio - 1).abs()),
        "mean_error_over_std": _median(mean_error),
    }


def _median(values: torch.Tensor) -> float | None:
    return values.median().item() if values.isfinite().all() else None


def _share(mask: torch.Tensor) -> float:
    return mask.double().mean().item()
