import pytest
import torch
import torch.distributed as dist
from torch.optim import SGD, AdamW

from pipeline.parallel import ShardedOptimizer

from ..ranks import on_ranks
from .training import add_gradients, assert_alike, assert_same, list_of, make_net, make_pair, train

CLASSES = {SGD: {"lr": 0.1, "momentum": 0.9}, AdamW: {"lr": 0.1, "weight_decay": 0.1}}


def partly_frozen(with_gradients):
    net = make_net()
    if with_gradients:
        add_gradients(net, 0)
    net[4].requires_grad_(False)
    return net


@on_ranks(2)
@pytest.mark.parametrize("keeps_gradients", [False, True])
@pytest.mark.parametrize("optimizer_cls", CLASSES)
def test_freezing_and_unfreezing_between_steps_equals_the_plain_optimizer(context, optimizer_cls, keeps_gradients):
    sharded, plain = make_pair(optimizer_cls, make=lambda: partly_frozen(False), **CLASSES[optimizer_cls])
    for layer, trained in ((4, False), (0, False), (4, True), (0, True)):
        for net, optimizer in (sharded, plain):
            net[layer].requires_grad_(trained)
            # Always trained: without any trained parameter there is nothing to go backward from.
            net[0].bias.requires_grad_(True)
            train(net, optimizer, [0, 0], keeps_gradients=keeps_gradients)
        assert_alike(sharded, plain)


@on_ranks(2)
def test_a_frozen_parameter_is_updated_only_if_it_still_has_a_gradient(context):
    sharded, plain = make_pair(SGD, make=lambda: partly_frozen(True), lr=0.1)
    train(*sharded, [0])
    train(*plain, [0])
    assert not torch.equal(sharded[0][4].weight, make_net()[4].weight)
    assert_same(sharded[0], plain[0])
    optimizer = ShardedOptimizer(make_net().requires_grad_(False).parameters(), AdamW)
    optimizer.step()
    assert (optimizer.state_dict()["state"], optimizer.shard_elements) == ({}, (0, 0))


@on_ranks(2)
@pytest.mark.parametrize("keeper", [0, 1])
def test_gradients_on_a_single_rank_let_no_rank_drift_or_hang(context, keeper):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), AdamW, lr=0.1)
    if context.rank == keeper:
        add_gradients(net, 0)
    sharded.step()
    net[0].requires_grad_(False)
    add_gradients(net, 0)
    sharded.step()
    for parameter in list_of(net):
        of_rank_0 = parameter.detach().clone()
        dist.broadcast(of_rank_0, src=0)
        assert torch.equal(parameter, of_rank_0)
