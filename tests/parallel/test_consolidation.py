"""State dicts of the sharded optimizer: brought together from all ranks, and shared out again."""

import io
import pickle
from copy import copy, deepcopy

import pytest
import torch
from torch.optim import SGD, AdamW

from pipeline.parallel import ShardedOptimizer

from .training import assert_same, assert_same_state, groups_of, make_net, train

WORLD_SIZES = (1, 2, 3)
every_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)


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


def with_momentum(net, make_optimizer):
    return make_optimizer(net.parameters(), SGD, lr=0.05, momentum=0.9)


def in_bfloat16(net, make_optimizer):
    return make_optimizer(net.bfloat16().parameters(), AdamW, lr=0.05)


def with_a_group_added(net, make_optimizer):
    optimizer = make_optimizer(net[0].parameters(), SGD, lr=0.05, momentum=0.9)
    train(net, optimizer, [10])
    net.zero_grad()
    optimizer.add_param_group({"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.01})
    return optimizer


def before_the_first_step(net, make_optimizer):
    return make_optimizer(groups_of(net), AdamW, lr=0.05)


CASES = {with_momentum: 3, in_bfloat16: 3, with_a_group_added: 3, before_the_first_step: 0}


def make_plain(params, optimizer_cls, **arguments):
    return optimizer_cls(params, **arguments)


def saved_in_each_case(context):
    by_case = []
    for build, steps in CASES.items():
        net = make_net()
        sharded = build(net, ShardedOptimizer)
        train(net, sharded, range(steps))
        by_case.append({"net": net.state_dict(), "optimizer": sharded.state_dict()})
    stream = io.BytesIO()
    torch.save(by_case, stream)
    return stream.getvalue()


def assert_continued_in_each_case(context, saved):
    by_case = torch.load(io.BytesIO(saved))
    for (build, steps), loaded in zip(CASES.items(), by_case, strict=True):
        net, alone, throughout = make_net(), make_net(), make_net()
        sharded = build(net, ShardedOptimizer)
        plain, unbroken = build(alone, make_plain), build(throughout, make_plain)
        for module, optimizer in ((net, sharded), (alone, plain)):
            module.load_state_dict(loaded["net"])
            optimizer.load_state_dict(deepcopy(loaded["optimizer"]))
            train(module, optimizer, range(steps, 5))
        train(throughout, unbroken, range(5))
        for module, optimizer in ((net, sharded), (alone, plain)):
            assert_same(module, throughout)
            assert_same_state(optimizer.state_dict(), unbroken.state_dict())


def test_what_two_ranks_save_goes_on_in_a_plain_optimizer_and_in_any_world_size(on_ranks):
    saved = on_ranks(saved_in_each_case, 2)
    for world_size in WORLD_SIZES:
        on_ranks(assert_continued_in_each_case, world_size, saved[1])


def make_pair():
    """Make two equal nets, one with a sharded optimizer and one with a plain."""
    net, alone = make_net(), make_net()
    return net, ShardedOptimizer(net.parameters(), AdamW), alone, AdamW(alone.parameters())


def assert_lookups_lose_nothing(context):
    net, sharded, alone, plain = make_pair()
    for module, optimizer in ((net, sharded), (alone, plain)):
        train(module, optimizer, range(2))
    for parameter in net.parameters():
        sharded.state[parameter].get("exp_avg")
    assert_same_state(sharded.state_dict(), plain.state_dict())


def test_looking_up_the_state_of_another_ranks_parameter_leaves_it_in_the_state_dict(on_ranks):
    on_ranks(assert_lookups_lose_nothing, 2)


def assert_saving_hooks_see_all_state_once(context):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    train(net, sharded, [0])
    seen = []
    sharded.register_state_dict_pre_hook(lambda optimizer: seen.append(len(optimizer.state)))
    sharded.register_state_dict_post_hook(lambda _, saved: seen.append(len(saved["state"])))
    sharded.register_state_dict_post_hook(lambda _, saved: {**saved, "note": len(saved["state"])}, prepend=True)
    assert sharded.state_dict()["note"] == 5
    assert seen == [len(sharded.state), 5]
    assert len(sharded.state) < 5


def test_hooks_after_saving_find_all_state_once(on_ranks):
    on_ranks(assert_saving_hooks_see_all_state_once, 2)


def assert_loading_hooks_see_what_is_given_then_the_own_share(context):
    net, sharded, alone, plain = make_pair()
    train(alone, plain, range(2))
    seen = []

    def without_the_first(_, given):
        seen.append(len(given["state"]))
        return {**given, "state": {index: state for index, state in given["state"].items() if index}}

    sharded.register_load_state_dict_pre_hook(without_the_first)
    sharded.register_load_state_dict_post_hook(lambda optimizer: seen.append(len(optimizer.state)))
    given = plain.state_dict()
    sharded.load_state_dict(given)
    assert len(given["state"]) == 5
    own = [sharded.owner(parameter) == context.rank for parameter in net.parameters()]
    assert seen == [5, sum(own[1:])]
    assert sorted(sharded.state_dict()["state"]) == [1, 2, 3, 4]


def test_hooks_around_loading_find_what_is_given_and_may_change_it_and_then_the_own_share(on_ranks):
    on_ranks(assert_loading_hooks_see_what_is_given_then_the_own_share, 2)


class Unread(dict):
    """What fails as soon as it is read."""

    def items(self):
        raise AssertionError("another rank's share was read")


def assert_own_share_read(context):
    net, sharded, alone, plain = make_pair()
    train(alone, plain, range(2))
    given = plain.state_dict()
    for index, parameter in enumerate(net.parameters()):
        if sharded.owner(parameter) != context.rank:
            given["state"][index] = Unread()
    sharded.load_state_dict(given)
    assert_same_state(sharded.state_dict(), plain.state_dict())


def test_loading_takes_the_state_of_the_own_share_alone_to_the_device(on_ranks):
    on_ranks(assert_own_share_read, 2)


def assert_not_copied(context):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    train(net, sharded, [0])
    for duplicate in (copy, deepcopy, pickle.dumps, lambda optimizer: torch.save(optimizer, io.BytesIO())):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: .* state_dict\(\)"):
            duplicate(sharded)


def test_a_share_is_neither_copied_nor_pickled(on_ranks):
    on_ranks(assert_not_copied, 2)


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
