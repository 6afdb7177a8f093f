"""A small net in fp64, trained with whatever optimizer; and two of them, or of their state dicts, compared."""

import torch
from torch import nn


def make_net():
    """Build the net, with the same weights at every call."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5, bias=False), nn.Tanh(), nn.Linear(5, 1)).double()


def groups_of(net):
    """Return its parameters in two groups with options of their own, in another order than the net's."""
    return [
        {"params": [net[0].weight, net[2].weight], "weight_decay": 0.2},
        {"params": [net[0].bias, net[4].weight, net[4].bias], "lr": 0.01},
    ]


def add_gradients(net, step):
    """Run forward and backward with the batch of a step."""
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    net(x.to(net[0].weight.dtype)).square().mean().backward()


def train(net, optimizer, steps, scheduler=None):
    """Run training steps, by the numbers of their batches."""
    for step in steps:
        add_gradients(net, step)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


def assert_same(net, other):
    """Compare the parameters of two nets."""
    for parameter, wanted in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-10, atol=1e-12)


def assert_same_state(actual, wanted):
    """Compare two state dicts."""
    assert actual.keys() == wanted.keys()
    assert actual["param_groups"] == wanted["param_groups"]
    assert actual["state"].keys() == wanted["state"].keys()
    for index, state in wanted["state"].items():
        assert actual["state"][index].keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(actual["state"][index][key], value, rtol=1e-10, atol=1e-12)
