"""The counts by formula beside those of explicit shares of matrices, multiplied and sent around simulated rings."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pipeline.formulas.feed_forward_parallel import PASSES, Layer, best_split, cost, most_shares, most_whole_shares
from pipeline.formulas.mesh import Block

from .rings import Ring

D, F, T = 8, 24, 24
LAYER = Layer(Block(D, F, matrices=3), T, flops_per_s=1e12, bytes_per_s=1e10)
MESHES = [(1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (2, 2), (4, 3)]


def numbers(*shape):
    return np.random.default_rng(len(shape) + shape[0]).integers(-3, 4, shape).astype(float)


X, DY = numbers(T, D), numbers(T, D) + 1
W1, W2, W3 = numbers(D, F), numbers(D, F) - 1, numbers(F, D)


class Device:
    """Counts the FLOPs of its products."""

    flops = 0

    def product(self, a, b):
        self.flops += 2 * a.shape[0] * a.shape[1] * b.shape[1]
        return a @ b


def forward(device, x, w1, w2, w3):
    """Compute (x·W1 ⊙ x·W2)·W3: a gate without a function, which has no product."""
    gate, up = device.product(x, w1), device.product(x, w2)
    return device.product(gate * up, w3), (gate, up)


def backward(device, dy, x, w1, w2, w3, kept):
    """Return the gradients of the input and of the three matrices."""
    gate, up = kept
    dh = device.product(dy, w3.T)
    dw3 = device.product((gate * up).T, dy)
    dgate, dup = dh * up, dh * gate
    dx = device.product(dgate, w1.T) + device.product(dup, w2.T)
    return dx, (device.product(x.T, dgate), device.product(x.T, dup), dw3)


class Mesh:
    """X × Y devices: rows of the batch over X, columns of W1 and W2 and rows of W3 over Y; rings along both axes."""

    def __init__(self, batch_shares, width_shares, keeps_weights=False):
        self.shape = batch_shares, width_shares
        self.keeps_weights = keeps_weights
        self.devices = {place: Device() for place in itertools.product(range(batch_shares), range(width_shares))}
        self.weight_rings = [Ring(batch_shares) for _ in range(width_shares)]
        self.activation_rings = [Ring(width_shares) for _ in range(batch_shares)]
        self.x, self.dy = np.split(X, batch_shares), np.split(DY, batch_shares)
        cuts = zip(
            np.split(W1, width_shares, 1), np.split(W2, width_shares, 1), np.split(W3, width_shares, 0), strict=True
        )
        # What the devices of a column hold together, as one flat array, of which FSDP gives each a share.
        self.flat = [np.concatenate([matrix.ravel() for matrix in matrices]) for matrices in cuts]
        self.shapes = [(D, F // width_shares), (D, F // width_shares), (F // width_shares, D)]

    def unflatten(self, flat):
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = np.split(flat, np.cumsum(sizes)[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def weights(self):
        """Return the matrices of each column's devices, gathered where each has a share."""
        rows, columns = self.shape
        if self.keeps_weights:
            gathered = [[self.flat[y]] * rows for y in range(columns)]
        else:
            gathered = [ring.all_gather(np.array_split(self.flat[y], rows)) for y, ring in enumerate(self.weight_rings)]
        return {(x, y): self.unflatten(gathered[y][x]) for x, y in self.devices}

    def forward(self):
        weights = self.weights()
        done = {place: forward(device, self.x[place[0]], *weights[place]) for place, device in self.devices.items()}
        self.kept = {place: kept for place, (_, kept) in done.items()}
        return self.summed({place: output for place, (output, _) in done.items()})

    def backward(self):
        weights = self.weights()
        done = {
            (x, y): backward(device, self.dy[x], self.x[x], *weights[x, y], self.kept[x, y])
            for (x, y), device in self.devices.items()
        }
        rows = self.shape[0]
        sums = []
        for y, ring in enumerate(self.weight_rings):
            flat = [np.concatenate([grad.ravel() for grad in done[x, y][1]]) for x in range(rows)]
            reduced = ring.all_reduce(flat)[0] if self.keeps_weights else np.concatenate(ring.reduce_scatter(flat))
            sums.append(self.unflatten(reduced))
        columns_of = [[of_column[matrix] for of_column in sums] for matrix in range(3)]
        gradients = [np.concatenate(parts, axis) for parts, axis in zip(columns_of, (1, 1, 0), strict=True)]
        return self.summed({place: dx for place, (dx, _) in done.items()}), gradients

    def summed(self, parts):
        """Return the whole batch's sum of each row's parts."""
        columns = self.shape[1]
        of_rows = []
        for x, ring in enumerate(self.activation_rings):
            sums = ring.all_reduce([parts[x, y] for y in range(columns)])
            assert all(np.array_equal(one, sums[0]) for one in sums)
            of_rows.append(sums[0])
        return np.concatenate(of_rows)

    def sent_bytes(self):
        """Return the bytes of 16-bit numbers that each device sent for weights and for activations."""
        return {
            (x, y): (2 * self.weight_rings[y].sent[x], 2 * self.activation_rings[x].sent[y]) for x, y in self.devices
        }


def rounded(expected):
    """Return the counted bytes, which are whole but for the rounding of (n - 1) / n."""
    return round(expected.weight_bytes, 6), round(expected.activation_bytes, 6)


def difference(after, before):
    return {place: tuple(a - b for a, b in zip(after[place], before[place], strict=True)) for place in after}


@pytest.mark.parametrize("keeps_weights", [False, True])
@pytest.mark.parametrize("shares", MESHES)
def test_flops_and_bytes_are_those_of_shares_that_are_multiplied_and_sent(shares, keeps_weights):
    mesh, alone = Mesh(*shares, keeps_weights), Device()
    output, kept = forward(alone, X, W1, W2, W3)
    np.testing.assert_array_equal(mesh.forward(), output)
    sent = mesh.sent_bytes()
    flops = {place: device.flops for place, device in mesh.devices.items()}
    expected = cost(LAYER, "forward", *shares, keeps_weights)
    assert set(flops.values()) == {expected.flops}
    assert set(sent.values()) == {rounded(expected)}

    dx, gradients = mesh.backward()
    whole_dx, whole = backward(alone, DY, X, W1, W2, W3, kept)
    np.testing.assert_array_equal(dx, whole_dx)
    for ours, theirs in zip(gradients, whole, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    expected = cost(LAYER, "backward", *shares, keeps_weights)
    assert {device.flops - flops[place] for place, device in mesh.devices.items()} == {expected.flops}
    moved = difference(mesh.sent_bytes(), sent)
    assert set(moved.values()) == {rounded(expected)}


# Round figures of an H200 with NVLink, and a batch at which either axis alone is enough for hundreds of devices.
LARGE = Layer(Block(4608, 12288, matrices=3), 1e6, flops_per_s=1e15, bytes_per_s=4.5e11)


@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("strategy", ["data_parallel", "fsdp", "tensor"])
def test_at_the_most_devices_computing_takes_as_long_as_communicating(strategy, phase):
    found = cost(LARGE, phase, *most_shares(LARGE, strategy, phase), keeps_weights=strategy == "data_parallel")
    if (strategy, phase) == ("data_parallel", "forward"):
        assert found.communication_s(LARGE) == 0
    else:
        assert found.compute_s(LARGE) == pytest.approx(found.communication_s(LARGE))


@pytest.mark.parametrize("tokens", [1e6, 1000])  # so few that tensor parallelism alone pays
@pytest.mark.parametrize("phase", PASSES)
@pytest.mark.parametrize("axes_overlap", [False, True])
def test_no_other_split_has_more_devices(axes_overlap, phase, tokens):
    layer = replace(LARGE, tokens=tokens)
    x, y = best_split(layer, phase, axes_overlap)

    def fits(batch_shares, width_shares):
        found = cost(layer, phase, batch_shares, width_shares)
        return found.communication_s(layer, axes_overlap) <= found.compute_s(layer) * (1 + 1e-9)

    assert fits(x, y)
    splits = itertools.product(np.geomspace(1, 2 * x, 200), np.geomspace(1, 2 * y, 200))
    assert max(a * b for a, b in splits if fits(a, b)) <= x * y * (1 + 1e-9)
    assert most_shares(layer, "fsdp_tensor", phase, axes_overlap) == (x, y)


def test_without_overlap_of_the_axes_a_quarter_of_the_devices_is_left():
    layer = replace(LARGE, bytes_per_s=1e14)
    both, one_after_the_other = (math.prod(best_split(layer, "forward", overlap)) for overlap in (True, False))
    assert one_after_the_other / both == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize("phase", PASSES)
def test_no_other_whole_split_of_two_axes_in_turn_has_more_devices(phase):
    random = np.random.default_rng(0)
    for tokens, d_ff in random.integers(1, [4000, 3000], (200, 2)):
        layer = Layer(Block(D, int(d_ff), matrices=3), int(tokens), flops_per_s=1e12, bytes_per_s=2e10)
        a, b = (limit - 1 for limit in best_split(layer, phase, axes_overlap=True))
        every = itertools.product(range(1, math.floor(1 + a) + 1), range(1, math.floor(1 + b) + 1))
        fitting = (x * y for x, y in every if (x - 1) / a + (y - 1) / b <= 1)
        assert math.prod(most_whole_shares(layer, "fsdp_tensor", phase)) == max(fitting)


def test_a_limit_of_one_axis_or_of_axes_that_overlap_is_rounded_down():
    layer = Layer(Block(D, 300, matrices=3), 370, flops_per_s=1e12, bytes_per_s=1e10)
    assert most_whole_shares(layer, "fsdp", "forward") == (4, 1)
    assert most_whole_shares(layer, "tensor", "forward") == (1, 5)
    assert most_whole_shares(layer, "tensor", "backward") == (1, 10)
    assert most_whole_shares(layer, "fsdp_tensor", "forward", axes_overlap=True) == (4, 5)
