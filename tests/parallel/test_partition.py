import random

import pytest
import torch
from torch import nn
from torch.optim import AdamW

from pipeline.parallel import ShardedOptimizer
from pipeline.parallel.partition import Partition, least_loaded


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


def parameters_of(*sizes, trained):
    return [nn.Parameter(torch.empty(size), requires_grad=trained) for size in sizes]


def test_frozen_parameters_are_spread_without_unbalancing_the_trained_ones():
    trained, frozen = parameters_of(9, 4, 3, trained=True), parameters_of(*[5] * 8, trained=False)
    mixed = [*frozen[:4], *trained, *frozen[4:]]
    partition = Partition.empty(2).with_added(mixed)
    assert partition.trained_elements == Partition.empty(2).with_added(trained).trained_elements == (9, 7)
    assert partition.frozen_elements == (20, 20)
    assert list(partition.owners) == [*trained, *frozen]


def test_frozen_parameters_fill_up_what_the_trained_ones_leave_uneven():
    partition = Partition.empty(3).with_added(parameters_of(10, 1, trained=True))
    partition = partition.with_added(parameters_of(*[3] * 6, trained=False))
    assert partition.trained_elements == (10, 1, 0)
    assert partition.frozen_elements == (0, 9, 9)


def test_a_partition_is_not_changed_by_what_is_added_to_it():
    partition = Partition.empty(2)
    partition.with_added(parameters_of(3, trained=True))
    assert (partition.owners, partition.trained_elements) == ({}, (0, 0))


def unfrozen(context):
    net = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6))).requires_grad_(False)
    net[5].requires_grad_(True)
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    net.requires_grad_(True)
    net(torch.ones(2, 8)).sum().backward()
    sharded.step()
    return sum(state["exp_avg"].numel() for state in sharded.state.values())


def test_what_is_unfrozen_later_is_balanced_too(on_ranks):
    by_rank = on_ranks(unfrozen, 2)
    assert sum(by_rank) == 6 * 72
    assert max(by_rank) - min(by_rank) <= 64
