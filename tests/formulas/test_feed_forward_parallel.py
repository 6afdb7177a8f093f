import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.formulas.feed_forward_parallel import PASSES, Layer, cost, most_shares, most_whole_shares
from pipeline.formulas.mesh import Block

D, F, T = 8, 24, 24
LAYER = Layer(Block(D, F, matrices=3), T, flops_per_s=1e12, bytes_per_s=1e10)
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2), (4, 3)]


def counted(phase, batch_shares, width_shares, keeps_weights):
    """Count what one of X × Y devices computes and sends on rings over X and Y."""
    rows, columns = T // batch_shares, F // width_shares
    products = 6 if phase == "backward" else 3  # backward computes the gradients of both factors
    # An all-gather and a reduce-scatter send (n − 1) / n of a buffer each, an all-reduce is both.
    rounds = {("forward", False): 1, ("forward", True): 0}.get((phase, keeps_weights), 2)
    weights = rounds * (batch_shares - 1) / batch_shares * 3 * D * columns
    # The output in the forward pass and the input's gradient in the backward pass are sums over Y.
    outputs = 2 * (width_shares - 1) / width_shares * rows * D
    return products * 2 * rows * D * columns, 2 * weights, 2 * outputs


@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("keeps_weights", [False, True])
@pytest.mark.parametrize("shares", MESHES)
def test_flops_and_bytes_match_a_count_over_the_shares(shares, keeps_weights, phase):
    expected = cost(LAYER, phase, *shares, keeps_weights)
    found = (expected.flops, expected.weight_bytes, expected.activation_bytes)
    assert counted(phase, *shares, keeps_weights) == pytest.approx(found)


# Round numbers for an H200 with NVLink, and a batch at which either axis alone suffices for hundreds of devices.
LARGE = Layer(Block(4608, 12288, matrices=3), 1e6, flops_per_s=1e15, bytes_per_s=4.5e11)


@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("strategy", ["data_parallel", "fsdp", "tensor"])
def test_at_the_device_limit_computing_takes_as_long_as_communicating(strategy, phase):
    found = cost(LARGE, phase, *most_shares(LARGE, strategy, phase), keeps_weights=strategy == "data_parallel")
    if (strategy, phase) == ("data_parallel", "forward"):
        assert found.communication_s(LARGE) == 0
    else:
        assert found.compute_s(LARGE) == pytest.approx(found.communication_s(LARGE))


@pytest.mark.parametrize("tokens", [1e6, 1000])  # 1000 are so few that only tensor parallelism pays
@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("axes_overlap", [False, True])
def test_no_other_split_has_more_devices(axes_overlap, phase, tokens):
    layer = replace(LARGE, tokens=tokens)
    x, y = most_shares(layer, "fsdp_tensor", phase, axes_overlap)

    def fits(batch_shares, width_shares):
        found = cost(layer, phase, batch_shares, width_shares)
        return found.communication_s(layer, axes_overlap) <= found.compute_s(layer) * (1 + 1e-9)

    assert fits(x, y)
    splits = itertools.product(np.geomspace(1, 2 * x, 200), np.geomspace(1, 2 * y, 200))
    assert max(a * b for a, b in splits if fits(a, b)) <= x * y * (1 + 1e-9)


@pytest.mark.parametrize("phase", PASSES)
def test_no_other_integer_split_without_overlap_has_more_devices(phase):
    random = np.random.default_rng(0)
    for tokens, d_ff in random.integers(1, [4000, 3000], (200, 2)):
        layer = Layer(Block(D, int(d_ff), matrices=3), int(tokens), flops_per_s=1e12, bytes_per_s=2e10)
        a, b = (limit - 1 for limit in most_shares(layer, "fsdp_tensor", phase, axes_overlap=True))
        every = itertools.product(range(1, math.floor(1 + a) + 1), range(1, math.floor(1 + b) + 1))
        fitting = (x * y for x, y in every if (x - 1) / a + (y - 1) / b <= 1)
        assert math.prod(most_whole_shares(layer, "fsdp_tensor", phase)) == max(fitting)


def test_limits_of_one_axis_or_of_overlapping_axes_are_rounded_down():
    layer = replace(LAYER, block=Block(D, 300, matrices=3), tokens=370)
    assert most_whole_shares(layer, "fsdp", "forward") == (4, 1)
    assert most_whole_shares(layer, "tensor", "forward") == (1, 5)
    assert most_whole_shares(layer, "tensor", "backward") == (1, 10)
    assert most_whole_shares(layer, "fsdp_tensor", "forward", axes_overlap=True) == (4, 5)
