"""Parameters that are frozen, or no longer, while a sharded optimizer trains the others."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from pipeline.parallel import ShardedOptimizer

from .training import assert_same

CLASSES = {"SGD, momentum": (SGD, {"lr": 0.1, "momentum": 0.9}), "AdamW": (AdamW, {"lr": 0.1, "weight_decay": 0.1})}
every_class = pytest.mark.parametrize("name", CLASSES)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()


def step(net, optimizer):
    net(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
    optimizer.step()


def assert_equal_when_frozen_and_unfrozen(context, name, keep_gradients):
    optimizer_cls, arguments = CLASSES[name]
    net, alone = make_net(), make_net()
    net[1].requires_grad_(False)
    alone[1].requires_grad_(False)
    sharded = ShardedOptimizer(net.parameters(), optimizer_cls, **arguments)
    plain = optimizer_cls(alone.parameters(), **arguments)
    for layer, trained in ((1, False), (0, False), (1, True), (0, True)):
        for module, optimizer in ((net, sharded), (alone, plain)):
            module[layer].requires_grad_(trained)
            # The first gradient of all: without one there is nothing to go backward from.
            module[0].bias.requires_grad_(True)
            for _ in range(2):
                step(module, optimizer)
                optimizer.zero_grad(set_to_none=not keep_gradients)
        assert_same(net, alone)


@every_class
@pytest.mark.parametrize("keep_gradients", [False, True])
def test_freezing_and_unfreezing_between_steps_equals_the_plain_optimizer_on_every_rank(on_ranks, name, keep_gradients):
    on_ranks(assert_equal_when_frozen_and_unfrozen, 2, name, keep_gradients)


def assert_equal_with_gradients_from_before(context):
    net, alone = make_net(), make_net()
    for module in (net, alone):
        module(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
        module[1].requires_grad_(False)
    sharded, plain = ShardedOptimizer(net.parameters(), SGD, lr=0.1), SGD(alone.parameters(), lr=0.1)
    for module, optimizer in ((net, sharded), (alone, plain)):
        step(module, optimizer)
    assert not torch.equal(net[1].weight, make_net()[1].weight)
    assert_same(net, alone)


def test_a_frozen_parameter_with_a_gradient_from_before_is_updated_on_every_rank(on_ranks):
    on_ranks(assert_equal_with_gradients_from_before, 2)


def gradients_on_one_rank(context, keeper):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), AdamW, lr=0.1)
    if context.rank == keeper:
        step(net, sharded)
    else:
        sharded.step()
    net[0].requires_grad_(False)
    step(net, sharded)
    return [parameter.tolist() for parameter in net.parameters()]


@pytest.mark.parametrize("keeper", [0, 1])
def test_gradients_that_one_rank_alone_has_let_none_drift_or_wait(on_ranks, keeper):
    first, second = on_ranks(gradients_on_one_rank, 2, keeper, timeout_s=15)
    assert first == second


def all_frozen(context):
    net = make_net().requires_grad_(False)
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    sharded.step()
    assert_same(net, make_net())
    return sharded.state_dict()["state"], sharded.shard_elements


def test_a_step_with_nothing_to_train_changes_nothing(on_ranks):
    assert on_ranks(all_frozen, 2) == [({}, (0, 0))] * 2
