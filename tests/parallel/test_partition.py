import torch
from torch import nn
from torch.optim import AdamW

from pipeline.parallel import ShardedOptimizer
from pipeline.parallel.partition import Partition

from ..ranks import on_ranks


@on_ranks(1, 2, 3)
def test_each_rank_keeps_only_its_shares_state_and_all_know_the_same_partition(context):
    net = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 5, bias=False), nn.Linear(5, 1))
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    net(torch.ones(2, 4)).sum().backward()
    sharded.step()
    assert {*sharded.state} == {each for each in net.parameters() if sharded.owner(each) == context.rank}
    elements = sum(state["exp_avg"].numel() for state in sharded.state.values())
    assert elements == sharded.shard_elements[context.rank]
    assert sharded.shard_elements == {1: (76,), 2: (40, 36), 3: (35, 28, 13)}[context.world_size]


def parameters_of(*sizes, trained):
    return [nn.Parameter(torch.empty(size), requires_grad=trained) for size in sizes]


def test_frozen_parameters_even_out_the_load_without_unbalancing_trained_ones():
    trained, frozen = parameters_of(9, 4, 3, trained=True), parameters_of(*[5] * 8, trained=False)
    empty = Partition.empty(2)
    partition = empty.with_added([*frozen[:4], *trained, *frozen[4:]])
    assert partition.trained_elements == empty.with_added(trained).trained_elements == (9, 7)
    assert partition.frozen_elements == (20, 20)
    assert list(partition.owners) == [*trained, *frozen]
    assert (empty.owners, empty.trained_elements) == ({}, (0, 0))  # unchanged
    partition = Partition.empty(3).with_added(parameters_of(10, 1, trained=True))
    partition = partition.with_added(parameters_of(*[3] * 6, trained=False))
    assert (partition.trained_elements, partition.frozen_elements) == ((10, 1, 0), (0, 9, 9))
