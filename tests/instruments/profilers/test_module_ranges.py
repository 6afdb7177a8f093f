from contextlib import contextmanager

import pytest
import torch
from torch import nn

from pipeline.instruments.profilers.module_ranges import ForwardRanges, module_ranges
from pipeline.ranges import listener, listening, span


@pytest.fixture
def opened():
    """Listen to ranges; return a list of those opened, each with the number of open ones around it and its name."""
    seen, depth = [], [0]

    @contextmanager
    def listen(name):
        seen.append((depth[0], name))
        depth[0] += 1
        yield
        depth[0] -= 1

    with listening(listen):
        yield seen
    assert depth == [0]


class Block(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.norm, self.linear, self.fails = nn.LayerNorm(4), nn.Linear(4, 4), fails

    def forward(self, x):
        if self.fails:
            raise RuntimeError("no luck")
        return x + self.linear(self.norm(x))


class Model(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layers = nn.ModuleList([Block(), Block(fails)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


def test_model_parts_open_nested_ranges_and_the_hooks_are_removed(opened):
    model = Model()
    with module_ranges(model):
        model(torch.tensor([1, 2]))
    model(torch.tensor([1, 2]))
    block = [(1, "norm"), (1, "linear")]
    assert opened == [(0, "embedding"), (0, "layers.0"), *block, (0, "layers.1"), *block]


@pytest.mark.usefixtures("opened")  # which checks that all are closed
def test_a_forward_pass_that_raises_leaves_no_range_open():
    with module_ranges(model := Model(fails=True)), pytest.raises(RuntimeError, match="no luck"):
        model(torch.tensor([1, 2]))


def nested(weight):
    with span("block"):
        x = weight @ weight
        with span("softmax"):
            x = torch.softmax(x, dim=-1)
        x = x * 2
    return x.sum()


def used_twice(weight):
    with span("block"):
        x = weight * 2
        return (x.exp() + x.sin()).sum()


class Probe(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with span("inside"):
            return gradient


def probed(weight):
    with span("probe"):
        return Probe.apply(weight).sum()


@pytest.mark.parametrize(
    ("forward", "in_forward", "in_backward"),
    [
        # Multiplication by 2; softmax; matmul.
        (nested, [(0, "block"), (1, "softmax")], [(0, "block"), (0, "block/softmax"), (0, "block")]),
        # A node whose result two others use opens its range once: the sum over all; that of two; sine; ...
        (used_twice, [(0, "block")], [(0, "block")] * 5),
        # The sum; the function, whose work runs inside its range.
        (probed, [(0, "probe")], [(0, "probe"), (0, "probe"), (1, "inside")]),
    ],
)
def test_backward_opens_the_forward_ranges_of_its_nodes_in_reverse_and_no_others(
    opened, forward, in_forward, in_backward
):
    weight = torch.ones(2, 2, requires_grad=True)
    with listening(noted := ForwardRanges(listener())):
        loss = forward(weight)
    assert opened == in_forward  # they are passed on to the profiler
    noted.mark_backward(loss * 2)
    opened.clear()
    loss.backward()
    assert opened == in_backward
    assert torch.equal(weight.grad, *torch.autograd.grad(forward(weight), weight))
