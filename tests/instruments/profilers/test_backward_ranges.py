from contextlib import contextmanager

import pytest
import torch

from pipeline.instruments.profilers.backward_ranges import ForwardRanges
from pipeline.ranges import listener, listening, span


@pytest.fixture
def opened():
    """Listen to ranges, and give the list of those opened."""
    names = []

    @contextmanager
    def listen(name):
        names.append(name)
        yield

    with listening(listen):
        yield names


@pytest.fixture
def weight():
    return torch.ones(2, 2, requires_grad=True)


def forward(weight):
    with span("block"):
        x = weight @ weight
        with span("softmax"):
            x = torch.softmax(x, dim=-1)
        x = x * 2
    return x.sum()


def test_backward_opens_the_forward_ranges_of_its_nodes_in_reverse_and_none_for_others(opened, weight):
    with listening(noted := ForwardRanges(listener())):
        loss = forward(weight)
    assert opened == ["block", "softmax"]  # forward ranges go on to the profiler
    noted.mark_backward(loss * 2)
    opened.clear()
    loss.backward()
    assert opened == ["block", "block/softmax", "block"]  # the product with 2; softmax; the matrix product


def test_a_node_whose_result_two_others_used_opens_its_range_once(opened, weight):
    with listening(noted := ForwardRanges(listener())), span("block"):
        x = weight * 2
        loss = (x.exp() + x.sin()).sum()
    noted.mark_backward(loss)
    opened.clear()
    loss.backward()
    assert opened == ["block"] * 5  # the sum over all; that of two; sine; exponential; the product


def test_work_of_a_node_runs_inside_its_range_and_the_gradient_is_the_same(weight):
    depth, inside = [0], []

    @contextmanager
    def listen(_name):
        depth[0] += 1
        yield
        depth[0] -= 1

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            inside.append(depth[0])
            return gradient

    noted = ForwardRanges(listen)
    with listening(noted), span("probe"):
        loss = Probe.apply(weight).sum()
    noted.mark_backward(loss)
    loss.backward()
    assert inside == [1]
    assert depth == [0]
    assert torch.equal(weight.grad, torch.ones(2, 2))
