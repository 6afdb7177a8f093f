"""State dicts of the sharded optimizer: brought together from all ranks, and shared out again."""

import io
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from pipeline.parallel import ShardedOptimizer

WORLD_SIZES = (1, 2, 3)
every_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 5, bias=False), nn.Tanh(), nn.Linear(5, 1)).double()


def groups_of(net):
    return [
        {"params": [net[0].weight, net[2].weight], "weight_decay": 0.2},
        {"params": [net[0].bias, net[4].weight, net[4].bias], "lr": 0.01},
    ]


def train(net, optimizer, steps):
    for step in steps:
        x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def assert_same(net, other):
    for parameter, wanted in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, wanted, rtol=1e-10, atol=1e-12)


def assert_same_state(found, wanted):
    """Compare two state dicts."""
    assert found.keys() == wanted.keys()
    assert found["param_groups"] == wanted["param_groups"]
    assert found["state"].keys() == wanted["state"].keys()
    for index, state in wanted["state"].items():
        assert found["state"][index].keys() == state.keys()
        for key, value in state.items():
            torch.testing.assert_close(found["state"][index][key], value, rtol=1e-10, atol=1e-12)


def saved_after_three_steps(context):
    net = make_net()
    sharded = ShardedOptimizer(groups_of(net), AdamW, lr=0.05)
    train(net, sharded, range(3))
    state_dict = sharded.state_dict()
    snapshot = {index: state["exp_avg"].clone() for index, state in state_dict["state"].items()}
    train(net, sharded, range(3))  # what was returned is a copy
    assert all(torch.equal(state_dict["state"][index]["exp_avg"], kept) for index, kept in snapshot.items())
    assert {value.device.type for state in state_dict["state"].values() for value in state.values()} == {"cpu"}
    stream = io.BytesIO()
    torch.save(state_dict, stream)
    return stream.getvalue()


def assert_continued_from(context, saved):
    net, alone = make_net(), make_net()
    plain = AdamW(groups_of(alone), lr=0.05)
    train(alone, plain, range(3))
    net.load_state_dict(alone.state_dict())
    sharded = ShardedOptimizer(groups_of(net), AdamW, lr=1.0)
    if saved is None:
        sharded.load_state_dict(deepcopy(plain.state_dict()))  # loading on the same device shares the tensors
    else:
        sharded.load_state_dict(torch.load(io.BytesIO(saved)))
        plain = AdamW(groups_of(alone), lr=1.0)
        plain.load_state_dict(torch.load(io.BytesIO(saved)))
    assert [group["lr"] for group in sharded.param_groups] == [0.05, 0.01]
    assert len(sharded.state) == sum(sharded.owner(p) == context.rank for p in net.parameters())
    for module, optimizer in ((net, sharded), (alone, plain)):
        train(module, optimizer, range(3, 6))
    assert_same(net, alone)
    assert_same_state(sharded.state_dict(), plain.state_dict())


def test_a_state_dict_loads_into_a_plain_optimizer_and_into_another_world_size(on_ranks):
    by_rank = on_ranks(saved_after_three_steps, 2)
    for world_size in WORLD_SIZES:
        on_ranks(assert_continued_from, world_size, by_rank[1])


@every_world_size
def test_a_plain_optimizers_state_dict_loads_into_a_sharded_one(on_ranks, world_size):
    on_ranks(assert_continued_from, world_size, None)


def assert_other_groups_are_refused(context):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    with pytest.raises(ValueError, match="different number of parameter groups"):
        sharded.load_state_dict(AdamW(groups_of(net)).state_dict())
    with pytest.raises(ValueError, match="doesn't match the size of optimizer's group"):
        sharded.load_state_dict(AdamW([net[0].weight]).state_dict())


def test_a_state_dict_of_other_groups_is_an_error(on_ranks):
    on_ranks(assert_other_groups_are_refused, 2)


def named(context):
    net = make_net()
    sharded, plain = ShardedOptimizer(net.named_parameters(), AdamW), AdamW(net.named_parameters())
    assert_same_state(sharded.state_dict(), plain.state_dict())
    sharded.load_state_dict(plain.state_dict())
    return sharded.param_groups[0]["param_names"]


def test_named_parameters_keep_their_names(on_ranks):
    assert on_ranks(named, 2) == [[name for name, _ in make_net().named_parameters()]] * 2
