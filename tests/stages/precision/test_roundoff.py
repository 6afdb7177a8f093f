"""The predictions against brute force: running sums that torch takes step by step."""

import math

import pytest
import torch

from pipeline.stages.precision import roundoff
from pipeline.stages.precision.roundoff import FORMATS

TORCH = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NAMES = tuple(FORMATS)

# Powers of two, just off them, halves of odd numbers (ties), and the assignment's.
SPECIAL = (1.0, 0.5, 0.25, 1.5, 0.75, 2.5, 1 + 2**-7, 1 - 2**-8, 3.0, 0.01, 0.001, 7.0, 2**-10)


def addends(name, low=-12, high=4, random=300):
    """Give many positive numbers of a format, from 2^low to 2^high."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.empty(random, dtype=torch.float64).uniform_(low, high, generator=generator)
    numbers = torch.cat([torch.tensor(SPECIAL, dtype=torch.float64), 2**exponents])
    return numbers.to(TORCH[name])


def brute_force(values, steps, starts=None):
    """Add each value to a running sum of its own, step by step: the sums after every step, (steps, values)."""
    total = torch.zeros_like(values) if starts is None else starts.clone()
    sums = torch.empty(steps, len(values), dtype=values.dtype)
    for step in range(steps):
        total += values
        sums[step] = total
    return sums.double()


@pytest.mark.parametrize("name", NAMES)
def test_a_format_is_what_torch_says_of_it(name):
    known, info = FORMATS[name], torch.finfo(TORCH[name])
    assert known.largest == info.max
    assert known.smallest_subnormal == info.smallest_normal * info.eps
    assert known.unit_roundoff == info.eps / 2


@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_torchs_rounding(name):
    generator = torch.Generator().manual_seed(1)
    exponents = torch.empty(5000, dtype=torch.float64).uniform_(-30, 17, generator=generator)
    known = FORMATS[name]
    edges = [0.0, known.overflow_threshold, known.overflow_threshold * (1 - 2**-23)]
    halves = [(2 * k + 1) * known.smallest_subnormal / 2 for k in range(8)]
    special = torch.tensor([*SPECIAL, *edges, *halves], dtype=torch.float64)
    numbers = torch.cat([2**exponents, -(2**exponents), special])
    if name != "fp32":  # torch rounds fp64 to fp32 on the way to half precision
        numbers = numbers.float().double()
    assert [known.rounded(number) for number in numbers.tolist()] == numbers.to(TORCH[name]).double().tolist()


@pytest.mark.parametrize(("name", "steps"), [("bf16", 700), ("fp16", 4500)])
def test_the_predicted_stall_is_where_every_sum_stays(name, steps):
    values = addends(name)
    sums = brute_force(values, steps)
    assert torch.equal(sums[-1], sums[-2])
    predicted = [roundoff.stall(value, FORMATS[name]) for value in values.tolist()]
    assert predicted == sums[-1].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_sum_started_just_below_the_predicted_stall_reaches_it_and_stays(name):
    values = addends(name)
    known = FORMATS[name]
    stalls = [roundoff.stall(value, known) for value in values.tolist()]
    starts = torch.tensor(
        [stall - 5 * roundoff.spacing_below(stall, known) for stall in stalls], dtype=torch.float64
    ).to(values.dtype)
    sums = brute_force(values, 8, starts)
    assert (sums[3] < torch.tensor(stalls, dtype=torch.float64)).all()
    assert sums[-1].tolist() == stalls


@pytest.mark.parametrize(("name", "steps"), [("bf16", 700), ("fp16", 3000), ("fp32", 3000)])
def test_the_predicted_sum_is_the_sum_after_any_number_of_steps_and_stays_from_the_predicted_step_on(name, steps):
    values = addends(name, random=100)
    sums = brute_force(values, steps)
    for count in (1, 2, 3, 17, 256, 300, 511, 699, steps):
        for value, so_far in zip(values.tolist(), sums[:count].T, strict=True):
            stays = (so_far == so_far[-1]).nonzero()[0].item() + 1
            expected = so_far[-1].item(), stays if stays < count else None
            assert roundoff.running_sum(value, count, FORMATS[name]) == expected


def test_a_wider_addend_is_rounded_with_the_sum_and_not_before():
    values = addends("fp32", random=100)
    total = torch.zeros(len(values), dtype=torch.float16)
    for _ in range(900):
        total += values
    predicted = [roundoff.running_sum(value, 900, FORMATS["fp16"])[0] for value in values.tolist()]
    assert predicted == total.double().tolist()


def test_a_sum_past_the_largest_number_is_infinite():
    values = torch.tensor([100.0, 17.0, 5000.0], dtype=torch.float16)
    assert brute_force(values, 4000)[-1].tolist() == [math.inf] * 3
    for value in values.tolist():
        assert roundoff.stall(value, FORMATS["fp16"]) == math.inf
        assert roundoff.running_sum(value, 4000, FORMATS["fp16"])[0] == math.inf
    assert math.isfinite(roundoff.stall(16.0, FORMATS["fp16"]))


def test_an_addend_below_half_the_smallest_number_is_lost_at_once():
    fp16 = FORMATS["fp16"]
    lost, kept = 2.0**-25, 2.0**-25 * 1.01
    assert torch.tensor(lost, dtype=torch.float16) == 0
    assert (roundoff.stall(lost, fp16), roundoff.running_sum(lost, 10, fp16)[0]) == (0, 0)
    assert roundoff.stall(kept, fp16) == fp16.smallest_subnormal * 2**11
    assert roundoff.running_sum(kept, 5000, fp16)[0] == roundoff.stall(kept, fp16)


@pytest.mark.parametrize("name", NAMES)
def test_no_sum_is_further_off_than_the_bound(name):
    values, steps = addends(name), 700
    error = (brute_force(values, steps)[-1] - steps * values.double()).abs()
    bounds = [roundoff.rounding_error_bound(value, steps, FORMATS[name]) for value in values.tolist()]
    assert (error <= torch.tensor(bounds, dtype=torch.float64)).all()


@pytest.mark.parametrize("addend", [0.0, -1.0, math.nan])
def test_an_addend_that_is_not_positive_is_refused(addend):
    with pytest.raises(ValueError, match=r"addend=.*: must be positive"):
        roundoff.stall(addend, FORMATS["fp16"])
    with pytest.raises(ValueError, match=r"addend=.*: must be positive"):
        roundoff.running_sum(addend, 10, FORMATS["fp16"])[0]
