import pytest
import torch

from pipeline.instruments.profilers.backward_ranges import ForwardRanges
from pipeline.ranges import listener, listening, span


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
    assert opened == [(0, "block"), (1, "softmax")]  # forward ranges go on to the profiler
    noted.mark_backward(loss * 2)
    opened.clear()
    loss.backward()
    assert opened == [
        (0, "block"),
        (0, "block/softmax"),
        (0, "block"),
    ]  # product with 2; softmax; product


def test_a_node_whose_result_two_others_used_opens_its_range_once(opened, weight):
    with listening(noted := ForwardRanges(listener())), span("block"):
        x = weight * 2
        loss = (x.exp() + x.sin()).sum()
    noted.mark_backward(loss)
    opened.clear()
    loss.backward()
    assert opened == [(0, "block")] * 5  # the sum over all; that of two; sine; exponential; the product


class Probe(torch.autograd.Function):
    """Passes its input on; its backward pass opens a range."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        with span("inside"):
            return gradient


def test_work_of_a_node_runs_inside_its_range_and_the_gradient_is_the_same(opened, weight):
    with listening(noted := ForwardRanges(listener())), span("probe"):
        loss = Probe.apply(weight).sum()
    noted.mark_backward(loss)
    opened.clear()
    loss.backward()
    assert opened == [(0, "probe"), (0, "probe"), (1, "inside")]  # the sum; the function
    assert torch.equal(weight.grad, torch.ones(2, 2))
