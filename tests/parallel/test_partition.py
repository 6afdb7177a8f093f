import random

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from pipeline.parallel import ShardedOptimizer
from pipeline.parallel.partition import least_loaded


def test_the_largest_go_first_each_to_the_least_loaded():
    loads = [0, 0]
    assert least_loaded([1, 2, 3, 7, 6], loads) == [0, 0, 1, 0, 1]
    assert loads == [10, 9]


def test_loads_from_before_count():
    loads = [10, 0, 4]
    assert least_loaded([3, 3, 3], loads) == [1, 1, 2]
    assert loads == [10, 6, 7]


def test_there_may_be_more_bins_than_things():
    loads = [0, 0, 0]
    assert least_loaded([5], loads) == [0]
    assert loads == [5, 0, 0]


@pytest.mark.parametrize("bins", [1, 2, 3, 8])
def test_no_two_loads_differ_by_more_than_the_largest_thing(bins):
    sizes = [random.Random(bins).randrange(1, 1000) for _ in range(200)]
    loads = [0] * bins
    assigned = least_loaded(sizes, loads)
    assert loads == [sum(size for size, bin_ in zip(sizes, assigned, strict=True) if bin_ == i) for i in range(bins)]
    assert max(loads) - min(loads) <= max(sizes)


def partitions(context):
    net = nn.Sequential(nn.Linear(4, 7), nn.Linear(7, 5, bias=False), nn.Linear(5, 1))
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    net(torch.ones(2, 4)).sum().backward()
    sharded.step()
    own = [index for index, parameter in enumerate(net.parameters()) if parameter in sharded.state]
    assert own == [i for i, parameter in enumerate(net.parameters()) if sharded.owner(parameter) == context.rank]
    elements = sum(state["exp_avg"].numel() for state in sharded.state.values())
    assert elements == sharded.shard_elements[context.rank]
    return [sharded.owner(parameter) for parameter in net.parameters()], sharded.shard_elements


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_each_rank_keeps_the_state_of_its_share_alone_and_all_know_the_same_balanced_partition(on_ranks, world_size):
    first, *others = on_ranks(partitions, world_size)
    assert all(other == first for other in others)
    assert sum(first[1]) == 28 + 7 + 35 + 5 + 1
    assert first[1] == {1: (76,), 2: (40, 36), 3: (35, 28, 13)}[world_size]
