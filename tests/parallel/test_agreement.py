"""What the ranks must agree on for a sharded optimizer: where they do not, every rank raises the same error."""

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon

from pipeline.parallel import ShardedOptimizer

LIMIT_S = 15


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)).double()


def groups_of(net):
    return [{"params": list(net[0].parameters())}, {"params": list(net[1].parameters()), "weight_decay": 0.2}]


def train(net, optimizer, steps):
    for _ in range(steps):
        net(torch.ones(2, 4, dtype=torch.float64)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


class Note:
    """Something whose words differ from rank to rank, as an address does."""

    def __init__(self, rank):
        self.rank = rank

    def __repr__(self):
        return f"a note of rank {self.rank}"


CONSTRUCTIONS = {
    "shape": (lambda rank: ShardedOptimizer(nn.Linear(2, 2 + rank // 2).parameters(), SGD), "shape (3, 2)"),
    "parameters": (lambda rank: ShardedOptimizer(nn.Linear(2, 2, bias=rank < 2).parameters(), SGD), "1 parameters"),
    "groups": (lambda rank: ShardedOptimizer(groups_of(make_net())[: 1 + (rank < 2)], AdamW), "1 groups for AdamW"),
    "class": (lambda rank: ShardedOptimizer(make_net().parameters(), AdamW if rank < 2 else SGD), "groups for SGD"),
    "default": (lambda rank: ShardedOptimizer(make_net().parameters(), SGD, lr=0.1 * (1 + rank)), "lr = 0.2"),
    "tensor": (
        lambda rank: ShardedOptimizer(make_net().parameters(), SGD, lr=torch.tensor(0.5 + rank // 2)),
        "lr = 1.5",
    ),
    "of a group": (
        lambda rank: ShardedOptimizer([{"params": make_net().parameters(), "betas": (0.9, 0.1 * rank)}], AdamW),
        "betas = (0.9, 0.1)",
    ),
    "lazy": (
        lambda rank: ShardedOptimizer(
            (nn.Linear if rank < 2 else nn.LazyLinear)(*(2, 3)[rank // 2 :]).parameters(), SGD
        ),
        "rank 2 raised ValueError: Attempted to use an uninitialized parameter",
    ),
    "nothing on one": (
        lambda rank: ShardedOptimizer(make_net().parameters() if rank else [], SGD),
        "rank 0 raised ValueError: optimizer got an empty parameter list",
    ),
    "not for the share of one": (
        lambda rank: ShardedOptimizer(nn.Linear(3, 3).parameters(), Muon),
        "rank 1 raised ValueError: Muon only supports 2D parameters",
    ),
}


def refusals(context):
    messages = []
    for make, _ in CONSTRUCTIONS.values():
        with pytest.raises(ValueError, match=r"^parameter groups") as caught:
            make(context.rank)
        messages.append(str(caught.value))
    return messages


def test_a_mismatch_at_construction_is_the_same_error_on_every_rank(on_ranks):
    first, *others = on_ranks(refusals, 3, timeout_s=LIMIT_S)
    assert all(messages == first for messages in others)
    for message, (_, told) in zip(first, CONSTRUCTIONS.values(), strict=True):
        assert told in message


def assert_own_errors(context):
    with pytest.raises(ValueError, match=r"^optimizer got an empty parameter list"):
        ShardedOptimizer([], AdamW)
    with pytest.raises(ValueError, match=r"^Invalid learning rate"):
        ShardedOptimizer(make_net().parameters(), AdamW, lr=-1)
    with pytest.raises(TypeError, match=r"^params argument given to the optimizer"):
        ShardedOptimizer(torch.ones(2), AdamW)
    with pytest.raises(ValueError, match=r"^Attempted to use an uninitialized parameter"):
        ShardedOptimizer(nn.LazyLinear(3).parameters(), AdamW)


@pytest.mark.parametrize("world_size", [1, 2])
def test_bad_arguments_are_the_errors_that_the_plain_optimizer_raises(on_ranks, world_size):
    on_ranks(assert_own_errors, world_size, timeout_s=LIMIT_S)


def assert_accepted(context):
    net, alone = make_net(), make_net()
    extra = {"lr": torch.tensor(0.05), "note": Note(context.rank), "foreach": False}
    sharded = ShardedOptimizer([{"params": net.parameters(), **extra}], AdamW)
    plain = AdamW([{"params": alone.parameters(), **extra}])
    for module, optimizer in ((net, sharded), (alone, plain)):
        train(module, optimizer, 2)
    torch.testing.assert_close(list(net.parameters()), list(alone.parameters()), rtol=1e-10, atol=1e-12)


def test_hyperparameters_of_any_kind_are_accepted(on_ranks):
    on_ranks(assert_accepted, 2, timeout_s=LIMIT_S)


class OnlyMatrices(SGD):
    """Refuses other parameters, but only after it has taken their group."""

    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if any(parameter.dim() != 2 for parameter in self.param_groups[-1]["params"]):
            raise ValueError("a vector")


ADDITIONS = {
    "shape": (lambda net, rank: [nn.Linear(3, 2 + rank, dtype=torch.float64).weight], "shape (3, 3)"),
    "in it already": (lambda net, rank: [net[rank].weight], "rank 0 raised ValueError: some parameters appear in more"),
    "refused by one": (lambda net, rank: [net[1].weight, net[1].bias], "rank 1 raised ValueError: a vector"),
    "no parameter": (
        lambda net, rank: [net[1].weight if rank else 1],
        "rank 0 raised TypeError: optimizer can only optimize Tensors",
    ),
}


def additions_refused(context):
    net, alone = make_net(), make_net()
    sharded = ShardedOptimizer([net[0].weight], OnlyMatrices, lr=0.1, momentum=0.9)
    plain = SGD([alone[0].weight], lr=0.1, momentum=0.9)
    messages = []
    for make_parameters, _ in ADDITIONS.values():
        with pytest.raises(ValueError, match=r"^parameter groups") as caught:
            sharded.add_param_group({"params": make_parameters(net, context.rank)})
        messages.append(str(caught.value))
        assert sharded.shard_elements == (12, 0)
        for module, optimizer in ((net, sharded), (alone, plain)):
            train(module, optimizer, 2)
    for module, optimizer in ((net, sharded), (alone, plain)):
        optimizer.add_param_group({"params": [module[1].weight], "lr": 0.05})
        train(module, optimizer, 2)
    torch.testing.assert_close(list(net.parameters()), list(alone.parameters()), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(sharded.state_dict(), plain.state_dict(), rtol=1e-10, atol=1e-12)
    return messages


def test_a_group_refused_on_any_rank_is_refused_on_all_and_leaves_the_optimizer_as_it_was(on_ranks):
    first, second = on_ranks(additions_refused, 2, timeout_s=LIMIT_S)
    assert first == second
    for message, (_, told) in zip(first, ADDITIONS.values(), strict=True):
        assert told in message
