"""The accumulation experiment: running sums on a device, and where they stall."""

from typing import Any

import torch

from pipeline.stages.precision import roundoff
from pipeline.stages.precision.cases import SUMS, Sum
from pipeline.stages.precision.dtypes import TORCH_DTYPES
from pipeline.stages.precision.roundoff import FORMATS

CURVE_POINTS = 200

# The search for the stall starts this many spacings below its prediction: an fp32 sum would need millions of steps to
# get there from 0.
APPROACH_SPACINGS = 20
APPROACH_STEPS = 50


def measure_accumulation(device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each case of `SUMS`: its value, its stall and its curve."""
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
    sums = running_sums(case, 0.0, case.steps, device)
    return {
        "result": sums[-1].item(),
        "stored_addend": torch.tensor(case.addend, dtype=TORCH_DTYPES[case.addend_dtype], device=device)
        .double()
        .item(),
        "stalled_at_step": _stalled_at_step(sums),
        **_stall(case, device),
        **_curve(sums),
    }


def _stalled_at_step(sums: torch.Tensor) -> int | None:
    """Return the step after which the sum no longer changes; None if the last step still changes it."""
    if sums[-1] != sums[-2]:
        return None
    return int((sums == sums[-1]).nonzero()[0].item()) + 1


def _stall(case: Sum, device: torch.device) -> dict[str, float | None]:
    """Start a sum just below its predicted stall; the measured stall is None if the sum does not stop changing."""
    accumulator = FORMATS[case.accumulator]
    predicted = roundoff.stall(FORMATS[case.addend_dtype].rounded(case.addend), accumulator)
    start = predicted - APPROACH_SPACINGS * roundoff.spacing_below(predicted, accumulator)
    sums = running_sums(case, start, APPROACH_STEPS, device)
    return {"stall": sums[-1].item() if sums[-1] == sums[-2] else None, "stall_approached_from": start}


def _curve(sums: torch.Tensor) -> dict[str, list]:
    """Thin out the running sums for a figure, keeping the first and the last step."""
    steps = torch.linspace(1, len(sums), CURVE_POINTS).round().long().unique()
    return {"curve_steps": steps.tolist(), "curve_sums": sums[steps - 1].tolist()}
