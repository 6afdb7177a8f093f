"""The accumulation experiment: running sums on a device, and where they stall."""

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pipeline.stages.precision import roundoff
from pipeline.stages.precision.cases import SUMS, Sum
from pipeline.stages.precision.roundoff import FORMATS

TORCH_DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CURVE_POINTS = 200

# The search for the stall starts this many spacings below its prediction: an fp32 sum would need millions of steps to
# get there from 0.
APPROACH_SPACINGS = 20
APPROACH_STEPS = 50


def measure_accumulation(device: torch.device) -> list[dict[str, Any]]:
    """Return a row for each case of `SUMS`: its value, its stall and its curve, thinned out for a figure."""
    rows = []
    for case in SUMS:
        sums, start = running_sums(case, 0.0, case.steps, device), _just_below_the_stall(case)
        near_stall = running_sums(case, start, APPROACH_STEPS, device)
        curve_steps = torch.linspace(1, len(sums), CURVE_POINTS).round().long().unique()
        rows.append(
            {
                **asdict(case),
                "status": "ok",
                "result": sums[-1].item(),
                "stored_addend": _addend(case, device).double().item(),
                # The step after which the sum no longer changes; none if the last step still changes it.
                "stalled_at_step": int((sums == sums[-1]).nonzero()[0].item()) + 1 if sums[-1] == sums[-2] else None,
                "stall": near_stall[-1].item() if near_stall[-1] == near_stall[-2] else None,
                "stall_approached_from": start,
                "curve_steps": curve_steps.tolist(),
                "curve_sums": sums[curve_steps - 1].tolist(),
            }
        )
    return rows


def running_sums(case: Sum, start: float, steps: int, device: torch.device) -> Tensor:
    """Add the case's addend to `start` step by step; return the sum after every step, fp64 on the CPU, (steps,)."""
    accumulator = TORCH_DTYPES[case.accumulator]
    total, addend = torch.tensor(start, dtype=accumulator, device=device), _addend(case, device)
    sums = torch.empty(steps, dtype=accumulator, device=device)
    for step in range(steps):
        total += addend.type(accumulator) if case.cast == "explicit" else addend
        sums[step] = total
    return sums.double().cpu()


def _addend(case: Sum, device: torch.device) -> Tensor:
    return torch.tensor(case.addend, dtype=TORCH_DTYPES[case.addend_dtype], device=device)


def _just_below_the_stall(case: Sum) -> float:
    accumulator = FORMATS[case.accumulator]
    predicted = roundoff.stall(FORMATS[case.addend_dtype].rounded(case.addend), accumulator)
    return predicted - APPROACH_SPACINGS * accumulator.spacing(predicted / 2)
