import io
import pickle
from copy import copy, deepcopy

import pytest
import torch
from torch.optim import SGD, AdamW

from pipeline.parallel import ShardedOptimizer

from ..ranks import on_ranks
from .refusals import refusal
from .training import assert_alike, assert_same_state, groups_of, make_net, make_pair, train, train_alike


def with_a_group_added(net, make_optimizer):
    optimizer = make_optimizer(net[0].parameters(), SGD, lr=0.05, momentum=0.9)
    train(net, optimizer, [10])
    net.zero_grad()
    optimizer.add_param_group({"params": [*net[2].parameters(), *net[4].parameters()], "lr": 0.01})
    return optimizer


# How to build the optimizer, and the number of steps before saving.
CASES = [
    *((lambda net, make_optimizer: make_optimizer(groups_of(net), AdamW, lr=0.05), steps) for steps in (0, 3)),
    (lambda net, make_optimizer: make_optimizer(net.parameters(), SGD, lr=0.05, momentum=0.9), 3),
    (lambda net, make_optimizer: make_optimizer(net.bfloat16().parameters(), AdamW, lr=0.05), 3),
    (with_a_group_added, 3),
]


def saved_in_each_case(context):
    by_case = []
    for build, steps in CASES:
        net = make_net()
        sharded = build(net, ShardedOptimizer)
        train(net, sharded, range(steps))
        saved = {"net": deepcopy(net.state_dict()), "optimizer": sharded.state_dict()}
        snapshot = deepcopy(saved)
        train(net, sharded, range(steps))  # what was returned is a copy
        torch.testing.assert_close(saved, snapshot, rtol=0, atol=0)
        state = saved["optimizer"]["state"].values()
        assert {value.device.type for of_parameter in state for value in of_parameter.values()} <= {"cpu"}
        by_case.append(snapshot)
    stream = io.BytesIO()
    torch.save(by_case, stream)
    return stream.getvalue()


def assert_continued_in_each_case(context, saved):
    by_case = torch.load(io.BytesIO(saved))
    make_plain = lambda params, optimizer_cls, **arguments: optimizer_cls(params, **arguments)  # noqa: E731
    for (build, steps), loaded in zip(CASES, by_case, strict=True):
        net, alone, throughout = make_net(), make_net(), make_net()
        sharded, plain, unbroken = build(net, ShardedOptimizer), build(alone, make_plain), build(throughout, make_plain)
        sharded.param_groups[0]["lr"] = plain.param_groups[0]["lr"] = 1.0  # loading must reset it
        train(throughout, unbroken, range(5))
        own = sum(sharded.owner(parameter) == context.rank for parameter in net.parameters())
        for module, optimizer, kept in ((net, sharded, own), (alone, plain, len(loaded["net"]))):
            module.load_state_dict(loaded["net"])
            optimizer.load_state_dict(deepcopy(loaded["optimizer"]))
            assert len(optimizer.state) == (kept if steps else 0)
            train(module, optimizer, range(steps, 5))
            assert_alike((module, optimizer), (throughout, unbroken))


def test_state_saved_by_two_ranks_resumes_in_a_plain_optimizer_and_any_world_size(host):
    _, saved = host.run(saved_in_each_case, 2)
    for world_size in (1, 2, 3):
        host.run(assert_continued_in_each_case, world_size, saved=saved)


@on_ranks(2)
def test_looking_up_another_ranks_state_does_not_change_the_state_dict(context):
    ours, plain = make_pair(AdamW)
    train_alike(ours, plain, range(2))
    for parameter in ours[0].parameters():
        ours[1].state[parameter].get("exp_avg")
    assert_alike(ours, plain)


@on_ranks(2)
def test_hooks_after_saving_see_the_full_state(context):
    (net, sharded), _ = make_pair(AdamW)
    train(net, sharded, [0])
    seen = []
    sharded.register_state_dict_pre_hook(lambda optimizer: seen.append(len(optimizer.state)))
    sharded.register_state_dict_post_hook(lambda _, saved: seen.append(len(saved["state"])))
    sharded.register_state_dict_post_hook(lambda _, saved: {**saved, "note": len(saved["state"])}, prepend=True)
    assert sharded.state_dict()["note"] == 5
    assert seen == [len(sharded.state), 5]
    assert len(sharded.state) < 5


class Unread(dict):
    def items(self):
        raise AssertionError("another rank's share was read")


@on_ranks(2)
def test_loading_reads_only_the_ranks_share_and_pre_hooks_may_change_the_input(context):
    (net, sharded), (alone, plain) = make_pair(AdamW)
    train(alone, plain, range(2))
    given, is_own = plain.state_dict(), [sharded.owner(parameter) == context.rank for parameter in net.parameters()]
    given["state"] |= {index: Unread() for index in range(5) if not is_own[index]}
    sharded.load_state_dict(given)
    assert_same_state(sharded.state_dict(), plain.state_dict())
    seen = []

    def without_the_first(_, given):
        seen.append(len(given["state"]))
        return {**given, "state": {index: state for index, state in given["state"].items() if index}}

    sharded.register_load_state_dict_pre_hook(without_the_first)
    sharded.register_load_state_dict_post_hook(lambda optimizer: seen.append(len(optimizer.state)))
    sharded.load_state_dict(given)
    assert len(given["state"]) == 5
    assert seen == [5, sum(is_own[1:])]
    assert sorted(sharded.state_dict()["state"]) == [1, 2, 3, 4]


@on_ranks(2)
def test_copying_pickling_and_loading_other_groups_are_refused(context):
    (net, sharded), _ = make_pair(AdamW)
    train(net, sharded, [0])
    for duplicate in (copy, deepcopy, pickle.dumps, lambda optimizer: torch.save(optimizer, io.BytesIO())):
        with pytest.raises(TypeError, match=r"cannot be copied or pickled: .* state_dict\(\)"):
            duplicate(sharded)
    several, smaller = (AdamW(groups).state_dict() for groups in (groups_of(net), [net[0].weight]))
    assert "different number of parameter groups" in refusal(ValueError, sharded.load_state_dict, several)
    assert "doesn't match the size of optimizer's group" in refusal(ValueError, sharded.load_state_dict, smaller)


@on_ranks(2)
def test_named_parameters_keep_their_names(context):
    (net, sharded), (_, plain) = make_pair(AdamW, lambda net: net.named_parameters())
    assert_same_state(sharded.state_dict(), plain.state_dict())
    sharded.load_state_dict(plain.state_dict())
    assert sharded.param_groups[0]["param_names"] == [name for name, _ in net.named_parameters()]
