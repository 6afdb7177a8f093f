"""Compare the predictions with brute force: running sums that torch computes step by step."""

import math

import pytest
import torch

from pipeline.stages.precision import roundoff
from pipeline.stages.precision.roundoff import FORMATS

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = tuple(FORMATS)
# Powers of two, just off them, halves of odd numbers (ties), and the assignment's.
SPECIAL = (1.0, 0.5, 0.25, 1.5, 0.75, 2.5, 1 + 2**-7, 1 - 2**-8, 3.0, 0.01, 0.001, 7.0, 2**-10)


def powers(low, high, count, seed=0):
    """Draw numbers from 2^low to 2^high, in fp64."""
    generator = torch.Generator().manual_seed(seed)
    return 2 ** torch.empty(count, dtype=torch.float64).uniform_(low, high, generator=generator)


def addends(name, random=100):
    return torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), powers(-12, 4, random)]).to(TORCH[name])


def brute_force(values, steps, starts=None):
    """Add each value to its own running sum, step by step; return the sums after every step, (steps, values)."""
    total = torch.zeros_like(values) if starts is None else starts.clone()
    sums = torch.empty(steps, len(values), dtype=values.dtype)
    for step in range(steps):
        total += values
        sums[step] = total
    return sums.double()


@pytest.mark.parametrize("name", NAMES)
def test_formats_and_rounding_match_torchs(name):
    known, info = FORMATS[name], torch.finfo(TORCH[name])
    assert known.smallest_subnormal == info.smallest_normal * info.eps
    assert known.unit_roundoff == info.eps / 2
    edges = [0.0, info.max, known.overflow_threshold, known.overflow_threshold * (1 - 2**-23)]
    halves = [(2 * k + 1) * known.smallest_subnormal / 2 for k in range(8)]
    drawn, special = powers(-30, 17, 5000, seed=1), torch.tensor([*SPECIAL, *edges, *halves], dtype=torch.float64)
    numbers = torch.cat([drawn, -drawn, special])
    if name != "fp32":  # torch rounds fp64 to fp32 on the way to half precision
        numbers = numbers.float().double()
    assert [known.rounded(number) for number in numbers.tolist()] == numbers.to(TORCH[name]).double().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_started_just_below_the_predicted_stall_reaches_it_and_stays(name):
    values, known = addends(name, random=300), FORMATS[name]
    stalls = torch.tensor([roundoff.stall(value, known) for value in values.tolist()], dtype=torch.float64)
    below = torch.tensor([known.spacing(stall / 2) for stall in stalls.tolist()], dtype=torch.float64)
    sums = brute_force(values, 8, (stalls - 5 * below).to(values.dtype))
    assert (sums[3] < stalls).all()
    assert torch.equal(sums[-1], stalls)


@pytest.mark.parametrize(("name", "steps"), [("bf16", 700), ("fp16", 4500), ("fp32", 3000)])
def test_the_predicted_sum_stall_and_bound_hold_after_any_number_of_steps(name, steps):
    values, known = addends(name), FORMATS[name]
    sums = brute_force(values, steps)
    if name != "fp32":  # fp32 sums would take millions of steps to stall
        assert [roundoff.stall(value, known) for value in values.tolist()] == sums[-1].tolist() == sums[-2].tolist()
    for count in (1, 2, 3, 17, 256, 300, 511, 699, steps):
        for value, so_far in zip(values.tolist(), sums[:count].T, strict=True):
            stays = (so_far == so_far[-1]).nonzero()[0].item() + 1
            expected = so_far[-1].item(), stays if stays < count else None
            assert roundoff.running_sum(value, count, known) == expected
            assert abs(expected[0] - count * value) <= roundoff.rounding_error_bound(value, count, known)


def test_a_wider_addend_is_rounded_only_with_the_sum_and_sums_overflow_to_infinity():
    values = addends("fp32")
    total = torch.zeros(len(values), dtype=torch.float16)
    for _ in range(900):
        total += values
    predicted = [roundoff.running_sum(value, 900, FORMATS["fp16"])[0] for value in values.tolist()]
    assert predicted == total.double().tolist()
    values = torch.tensor([100.0, 17.0, 5000.0], dtype=torch.float16)
    assert brute_force(values, 4000)[-1].tolist() == [math.inf] * 3
    for value in values.tolist():
        assert roundoff.stall(value, FORMATS["fp16"]) == math.inf
        assert roundoff.running_sum(value, 4000, FORMATS["fp16"])[0] == math.inf
    assert math.isfinite(roundoff.stall(16.0, FORMATS["fp16"]))


def test_an_addend_of_at_most_half_the_smallest_number_is_lost_at_once():
    fp16, kept = FORMATS["fp16"], 2.0**-25 * 1.01
    for lost in (0.0, 2.0**-25):
        assert torch.tensor(lost, dtype=torch.float16) == 0
        assert (roundoff.stall(lost, fp16), roundoff.running_sum(lost, 10, fp16)[0]) == (0, 0)
    assert roundoff.stall(kept, fp16) == fp16.smallest_subnormal * 2**11
    assert roundoff.running_sum(kept, 5000, fp16)[0] == roundoff.stall(kept, fp16)
