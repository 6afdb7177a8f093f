import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon

from pipeline.parallel import ShardedOptimizer

from ..ranks import on_ranks
from .refusals import refusal
from .training import assert_same, groups_of, make_net, make_pair, train, train_alike


def sharded(parameters, optimizer_cls=SGD, **arguments):
    return ShardedOptimizer(parameters, optimizer_cls, **arguments)


# By the message of the error on every rank.
CONSTRUCTIONS = {
    "shape (3, 2)": lambda rank: sharded(nn.Linear(2, 2 + rank // 2).parameters()),
    "1 parameters": lambda rank: sharded(nn.Linear(2, 2, bias=rank < 2).parameters()),
    "1 groups for AdamW": lambda rank: sharded(groups_of(make_net())[: 1 + (rank < 2)], AdamW),
    "groups for SGD": lambda rank: sharded(make_net().parameters(), AdamW if rank < 2 else SGD),
    "lr = 0.2": lambda rank: sharded(make_net().parameters(), lr=0.1 * (1 + rank)),
    "lr = 1.5": lambda rank: sharded(make_net().parameters(), lr=torch.tensor(0.5 + rank // 2)),
    "betas = (0.9, 0.1)": lambda rank: sharded(make_net().parameters(), AdamW, betas=(0.9, 0.1 * rank)),
    "rank 2 raised ValueError: Attempted to use an uninitialized parameter": lambda rank: sharded(
        (nn.Linear(2, 3) if rank < 2 else nn.LazyLinear(3)).parameters()
    ),
    "rank 0 raised ValueError: optimizer got an empty": lambda rank: sharded(make_net().parameters() if rank else []),
    "rank 1 raised ValueError: Muon only supports 2D": lambda rank: sharded(nn.Linear(3, 3).parameters(), Muon),
}


@on_ranks(3)
@pytest.mark.parametrize("told", CONSTRUCTIONS)
def test_a_mismatch_at_construction_raises_the_same_error_on_every_rank(context, told):
    said = refusal(ValueError, CONSTRUCTIONS[told], context.rank)
    assert said.startswith("parameter groups")
    assert told in said


@on_ranks(1, 2)
def test_an_error_on_every_rank_is_the_plain_optimizers(context):
    assert refusal(ValueError, sharded, [], AdamW).startswith("optimizer got an empty parameter list")
    assert refusal(TypeError, sharded, torch.ones(2), AdamW).startswith("params argument given to the optimizer")


@on_ranks(2)
def test_hyperparameters_of_any_kind_are_accepted(context):
    note = type("Note", (), {"__repr__": lambda self: f"of rank {context.rank}"})()  # differs by rank, like an address
    extra = {"lr": torch.tensor(0.05), "note": note, "foreach": False}
    ours, plain = make_pair(AdamW, lambda net: [{"params": net.parameters(), **extra}])
    train(*ours, range(2))
    train(*plain, range(2))
    assert_same(ours[0], plain[0])


class OnlyMatrices(SGD):
    def add_param_group(self, param_group):
        super().add_param_group(param_group)
        if any(parameter.dim() != 2 for parameter in self.param_groups[-1]["params"]):
            raise ValueError("a vector")


ADDITIONS = {
    "shape (3, 3)": lambda net, rank: [nn.Linear(3, 2 + rank, dtype=torch.float64).weight],
    "rank 0 raised ValueError: some parameters appear in more": lambda net, rank: [net[4 * rank].weight],
    "rank 1 raised ValueError: a vector": lambda net, rank: [net[4].weight, net[4].bias],
    "rank 0 raised TypeError: optimizer can only optimize Tensors": lambda net, rank: [net[4].weight if rank else 1],
}


@on_ranks(2)
def test_a_group_refused_on_any_rank_is_refused_on_all_and_changes_nothing(context):
    ours, plain = make_pair(OnlyMatrices, lambda net: [net[0].weight], lr=0.1, momentum=0.9)
    for told, make_parameters in ADDITIONS.items():
        group = {"params": make_parameters(ours[0], context.rank)}
        said = refusal(ValueError, ours[1].add_param_group, group)
        assert said.startswith("parameter groups")
        assert told in said
        assert ours[1].shard_elements == (28, 0)
        train_alike(ours, plain, range(2))
    for net, optimizer in (ours, plain):
        optimizer.add_param_group({"params": [net[4].weight], "lr": 0.05})
    train_alike(ours, plain, range(2))
