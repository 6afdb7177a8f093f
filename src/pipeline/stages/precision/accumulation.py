"""The accumulation experiment: running sums on a device, compared with the prediction from unit roundoff."""

from typing import Any

import torch

from pipeline.stages.precision import roundoff
from pipeline.stages.precision.cases import SUMS, Sum
from pipeline.stages.precision.dtypes import TORCH_DTYPES
from pipeline.stages.precision.roundoff import FORMATS, Format

CURVE_POINTS = 200

# The search for the stall starts this many spacings below its prediction: an fp32 sum would need millions of steps to
# get there from 0.
APPROACH_SPACINGS = 20
APPROACH_STEPS = 50


def measure_accumulation(device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each case of `SUMS`: value, errors and stall, measured and predicted, and the curve."""
    return [{**case.keys(), "status": "ok", **_row(case, device)} for case in SUMS]


def running_sums(case: Sum, start: float, steps: int, device: torch.device) -> torch.Tensor:
    """Add the case's addend to `start` step by step; return the sum after every step, fp64 on the CPU, (steps,)."""
    accumulator = TORCH_DTYPES[case.accumulator]
    total = torch.tensor(start, dtype=accumulator, device=device)
    addend = torch.tensor(case.addend, dtype=TORCH_DTYPES[case.addend_dtype], device=device)
    sums = torch.empty(steps, dtype=accumulator, device=device)
    for step in range(steps):
        total += addend.type(accumulator) if case.cast == "explicit" else addend
        sums[step] = total
    return sums.double().cpu()


def _row(case: Sum, device: torch.device) -> dict[str, Any]:
    accumulator, addend_format = FORMATS[case.accumulator], FORMATS[case.addend_dtype]
    addend = addend_format.rounded(case.addend)
    sums = running_sums(case, 0.0, case.steps, device)
    result, expected = sums[-1].item(), case.steps * case.addend
    stored = torch.tensor(case.addend, dtype=TORCH_DTYPES[case.addend_dtype], device=device).double().item()
    return {
        "expected": expected,
        "result": result,
        "predicted_result": roundoff.predicted_sum(addend, case.steps, accumulator),
        "error": result - expected,
        "rel_error": abs(result - expected) / expected,
        "addend_error": case.steps * (stored - case.addend),
        "predicted_addend_error": roundoff.addend_error(case.addend, case.steps, addend_format),
        "rounding_error": result - case.steps * stored,
        "rounding_error_bound": roundoff.rounding_error_bound(addend, case.steps, accumulator),
        "stalled_at_step": _stalled_at_step(sums),
        "predicted_stalled_at_step": roundoff.stalled_at_step(addend, case.steps, accumulator),
        **_stall(case, addend, accumulator, device),
        **_curve(sums, case.addend),
    }


def _stalled_at_step(sums: torch.Tensor) -> int | None:
    """Return the step after which the sum no longer changes; None if the last step still changes it."""
    if sums[-1] != sums[-2]:
        return None
    return int((sums == sums[-1]).nonzero()[0].item()) + 1


def _stall(case: Sum, addend: float, accumulator: Format, device: torch.device) -> dict[str, float | None]:
    """Start a sum just below its predicted stall; the measured stall is None if the sum does not stop changing."""
    predicted = roundoff.stall(addend, accumulator)
    start = predicted - APPROACH_SPACINGS * roundoff.spacing_below(predicted, accumulator)
    sums = running_sums(case, start, APPROACH_STEPS, device)
    return {
        "stall": sums[-1].item() if sums[-1] == sums[-2] else None,
        "predicted_stall": predicted,
        "stall_approached_from": start,
    }


def _curve(sums: torch.Tensor, addend: float) -> dict[str, list]:
    """Thin out the running sums and their relative errors for a figure, keeping the first and the last step."""
    steps = torch.linspace(1, len(sums), CURVE_POINTS).round().long().unique()
    shown, exact = sums[steps - 1], steps.double() * addend
    errors = (shown - exact).abs() / exact
    return {"curve_steps": steps.tolist(), "curve_sums": shown.tolist(), "curve_rel_errors": errors.tolist()}
