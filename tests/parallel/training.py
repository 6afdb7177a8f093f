"""Train a small fp64 net with a sharded optimizer and with the plain one, and compare the two."""

import torch
from torch import nn

from pipeline.parallel import ShardedOptimizer


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5, bias=False), nn.Tanh(), nn.Linear(5, 1)).double()


def groups_of(net):
    """Return the net's parameters in two groups with different options, in another order than the net's."""
    return [
        {"params": [net[0].weight, net[2].weight], "weight_decay": 0.2},
        {"params": [net[0].bias, net[4].weight, net[4].bias], "lr": 0.01},
    ]


def list_of(net):
    return list(net.parameters())


def make_pair(optimizer_cls, parameters_of=list_of, make=make_net, **arguments):
    """Make two equal nets, one with a sharded optimizer and one with a plain; return both pairs."""
    net, alone = make(), make()
    sharded = ShardedOptimizer(parameters_of(net), optimizer_cls, **arguments)
    return (net, sharded), (alone, optimizer_cls(parameters_of(alone), **arguments))


def add_gradients(net, step):
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
    net(x.to(net[0].weight.dtype)).square().mean().backward()


def train(net, optimizer, steps, scheduler=None, keeps_gradients=False):
    for step in steps:
        add_gradients(net, step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=not keeps_gradients)
        if scheduler is not None:
            scheduler.step()


def train_alike(sharded, plain, steps):
    """Train both pairs; net and state must then be the same."""
    for pair in (sharded, plain):
        train(*pair, steps)
    assert_alike(sharded, plain)


def assert_alike(sharded, plain):
    assert_same(sharded[0], plain[0])
    assert_same_state(sharded[1].state_dict(), plain[1].state_dict())


def assert_same(net, other):
    torch.testing.assert_close(list_of(net), list_of(other), rtol=1e-10, atol=1e-12)


def assert_same_state(actual, wanted):
    assert actual["param_groups"] == wanted["param_groups"]
    torch.testing.assert_close(actual["state"], wanted["state"], rtol=1e-10, atol=1e-12)
    assert actual.keys() == wanted.keys()
