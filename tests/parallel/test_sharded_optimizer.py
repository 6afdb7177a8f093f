"""The sharded optimizer against the plain one, in real processes."""

import gc
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR

from pipeline.parallel import BucketedDDP, ShardedOptimizer

from .freed import still_there
from .training import add_gradients, assert_same, assert_same_state, groups_of, make_net, train

CLASSES = {
    "AdamW": (AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "AdamW, not foreach": (AdamW, {"lr": 0.05, "foreach": False}),
    "AdamW, fused": (AdamW, {"lr": 0.05, "fused": True}),
    "SGD": (SGD, {"lr": 0.05}),
    "SGD, momentum": (SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}
every_class = pytest.mark.parametrize("name", CLASSES)
every_world_size = pytest.mark.parametrize("world_size", [1, 2, 3])


@contextmanager
def broadcasts_recorded():
    real, calls = dist.broadcast, []

    def broadcast(tensor, src, **kwargs):
        calls.append((tensor.nbytes, src))
        return real(tensor, src=src, **kwargs)

    with mock.patch.object(dist, "broadcast", broadcast):
        yield calls


def assert_equal_at_every_step(context, name):
    optimizer_cls, arguments = CLASSES[name]
    net, alone = make_net(), make_net()
    sharded = ShardedOptimizer(groups_of(net), optimizer_cls, **arguments)
    plain = optimizer_cls(groups_of(alone), **arguments)
    assert isinstance(sharded, Optimizer)
    for step in range(5):
        train(net, sharded, [step])
        train(alone, plain, [step])
        assert_same(net, alone)
    assert_same_state(sharded.state_dict(), plain.state_dict())


@every_class
@every_world_size
def test_training_and_state_equal_the_plain_optimizers_at_every_step(on_ranks, world_size, name):
    on_ranks(assert_equal_at_every_step, world_size, name)


def assert_equal_with_ddp(context):
    net, alone = make_net(), make_net()
    net = BucketedDDP(net, bucket_size_mb=0.0002)
    sharded, plain = ShardedOptimizer(net.parameters(), AdamW), AdamW(alone.parameters())
    for step in range(4):
        x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        net(x.chunk(context.world_size)[context.rank]).square().mean().backward()
        net.finish_gradient_synchronization()
        alone(x).square().mean().backward()
        for optimizer in (sharded, plain):
            optimizer.step()
            optimizer.zero_grad()
        assert_same(net, alone)


@every_world_size
def test_it_trains_together_with_ddp(on_ranks, world_size):
    on_ranks(assert_equal_with_ddp, world_size)


def few_parameters(context, name):
    optimizer_cls, arguments = CLASSES[name]
    net, alone = nn.Linear(2, 1), nn.Linear(2, 1)
    net.load_state_dict({"weight": torch.ones(1, 2), "bias": torch.zeros(1)})
    alone.load_state_dict(net.state_dict())
    sharded = ShardedOptimizer(net.parameters(), optimizer_cls, **arguments)
    plain = optimizer_cls(alone.parameters(), **arguments)
    for module, optimizer in ((net, sharded), (alone, plain)):
        for _ in range(3):
            module(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_same(net, alone)
    assert_same_state(sharded.state_dict(), plain.state_dict())
    sharded.load_state_dict(plain.state_dict())
    return len(sharded.state)


@every_class
def test_a_rank_may_be_left_without_a_share(on_ranks, name):
    empty = [0, 0, 0] if name == "SGD" else [1, 1, 0]
    assert on_ranks(few_parameters, 3, name) == empty


def assert_equal_with_groups_added(context):
    net, alone = make_net(), make_net()
    sharded = ShardedOptimizer(net[0].parameters(), SGD, lr=0.1, momentum=0.9)
    plain = SGD(alone[0].parameters(), lr=0.1, momentum=0.9)
    for step, layer in enumerate((2, 4)):
        for module, optimizer in ((net, sharded), (alone, plain)):
            train(module, optimizer, [step])
            optimizer.add_param_group({"params": list(module[layer].parameters()), "lr": 0.01 * (1 + step)})
            assert len(optimizer.param_groups) == 2 + step
            train(module, optimizer, [10 + step])
        assert_same(net, alone)
    with pytest.raises(ValueError, match="appear in more than one parameter group"):
        sharded.add_param_group({"params": [net[0].weight]})
    assert_same_state(sharded.state_dict(), plain.state_dict())


@every_world_size
def test_parameter_groups_may_be_added_between_steps(on_ranks, world_size):
    on_ranks(assert_equal_with_groups_added, world_size)


class NotesSteps(SGD):
    """Keeps a count in its groups, as schedule-free optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        return super().step(closure)


class ScalesSteps(SGD):
    """Takes a keyword with each step."""

    def step(self, closure=None, *, scale=1.0):
        for group in self.param_groups:
            group["lr"] = 0.1 * scale
        return super().step(closure)


def assert_keywords_are_passed_on(context):
    net, alone = make_net(), make_net()
    sharded, plain = ShardedOptimizer(net.parameters(), ScalesSteps), ScalesSteps(alone.parameters())
    for module, optimizer in ((net, sharded), (alone, plain)):
        add_gradients(module, 0)
        optimizer.step(scale=3.0)
        optimizer.step(None, scale=0.5)
    assert_same(net, alone)
    assert sharded.param_groups[0]["lr"] == 0.05
    with pytest.raises(TypeError, match="unexpected keyword argument 'scales'"):
        sharded.step(scales=2.0)


def test_keywords_of_a_step_reach_the_wrapped_optimizer(on_ranks):
    on_ranks(assert_keywords_are_passed_on, 2)


def closures(context):
    net, alone = make_net(), make_net()
    sharded, plain = ShardedOptimizer(net.parameters(), NotesSteps), NotesSteps(alone.parameters())

    def closure(module, optimizer):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.1 / optimizer.param_groups[0]["steps"]
        loss = module(torch.ones(2, 4, dtype=torch.float64)).square().mean()
        loss.backward()
        return loss

    losses = [[o.step(partial(closure, m, o)).item() for _ in range(3)] for m, o in ((net, sharded), (alone, plain))]
    assert losses[0] == pytest.approx(losses[1])
    assert_same(net, alone)
    return losses[0]


@every_world_size
def test_a_closure_on_every_rank_finds_and_sets_hyperparameters_and_its_loss_is_returned(on_ranks, world_size):
    first, *others = on_ranks(closures, world_size)
    assert len(set(first)) == 3
    assert all(losses == first for losses in others)


SCHEDULERS = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "OneCycleLR": lambda optimizer: OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=6),
}


def assert_equal_when_scheduled(context, scheduler):
    net, alone = make_net(), make_net()
    sharded, plain = ShardedOptimizer(groups_of(net), AdamW), AdamW(groups_of(alone))
    for module, optimizer in ((net, sharded), (alone, plain)):
        train(module, optimizer, range(5), SCHEDULERS[scheduler](optimizer))
    for group, wanted in zip(sharded.param_groups, plain.param_groups, strict=True):
        assert group["lr"] == wanted["lr"]
        assert group["betas"] == wanted["betas"]
    assert_same(net, alone)
    assert_same_state(sharded.state_dict(), plain.state_dict())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedulers_change_what_the_next_step_uses(on_ranks, scheduler):
    on_ranks(assert_equal_when_scheduled, 2, scheduler)


def counts(context):
    net = make_net()
    sharded = ShardedOptimizer(groups_of(net), NotesSteps)
    sharded.param_groups[0]["steps"] = 10
    train(net, sharded, range(3))
    saved = [group["steps"] for group in sharded.state_dict()["param_groups"]]
    return saved, [group["steps"] for group in sharded.param_groups]


def test_what_an_optimizer_notes_in_its_groups_stays_and_is_saved(on_ranks):
    assert on_ranks(counts, 2) == [([13, 3], [13, 3])] * 2


def assert_all_zeroed(context):
    net = make_net()
    sharded = ShardedOptimizer(net.parameters(), SGD)
    add_gradients(net, 0)
    sharded.zero_grad(set_to_none=False)
    assert all(not parameter.grad.any() for parameter in net.parameters())
    sharded.zero_grad()
    assert all(parameter.grad is None for parameter in net.parameters())


def test_zero_grad_reaches_the_parameters_of_all_shares(on_ranks):
    on_ranks(assert_all_zeroed, 2)


def communicated(context):
    net = make_net()
    net[2].requires_grad_(False)
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    add_gradients(net, 0)
    with broadcasts_recorded() as calls:
        sharded.step()
    elements = [nbytes // 8 for nbytes, _ in calls]
    by_owner = [sum(n for n, (_, src) in zip(elements, calls, strict=True) if src == rank) for rank in range(2)]
    assert tuple(by_owner) == sharded.shard_elements
    return elements


def test_a_step_broadcasts_each_trained_parameter_once_from_its_owner(on_ranks):
    assert on_ranks(communicated, 2) == [[28, 7, 5, 1]] * 2


def assert_equal_in_mixed_dtypes(context):
    def build():
        torch.manual_seed(0)
        return nn.ModuleList(nn.Linear(3, 3, dtype=dtype) for dtype in (torch.float32, torch.bfloat16, torch.float64))

    net, alone = build(), build()
    sharded, plain = ShardedOptimizer(net.parameters(), AdamW, lr=0.1), AdamW(alone.parameters(), lr=0.1)
    for module, optimizer in ((net, sharded), (alone, plain)):
        for _ in range(3):
            for parameter in module.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
    assert_same(net, alone)
    assert_same_state(sharded.state_dict(), plain.state_dict())


def test_parameters_of_different_dtypes_are_kept_apart(on_ranks):
    on_ranks(assert_equal_in_mixed_dtypes, 2)


def unused(context):
    net = make_net()
    before = net[2].weight.clone()
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    add_gradients(net, 0)
    net[2].weight.grad = None
    sharded.step()
    assert torch.equal(net[2].weight, before)
    return sorted(sharded.state_dict()["state"])


def test_a_parameter_without_gradient_is_passed_over(on_ranks):
    assert on_ranks(unused, 2) == [[0, 1, 3, 4]] * 2


def kept_storages(context):
    net = make_net()
    optimizer = ShardedOptimizer(net.parameters(), AdamW)
    train(net, optimizer, range(2))
    state = [tensor for state in optimizer.state.values() for tensor in state.values()]
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in (*net.parameters(), *state)]
    del net, optimizer, state
    gc.collect()
    return still_there(storages)


def test_dropping_module_and_optimizer_frees_parameters_and_state(on_ranks):
    assert on_ranks(kept_storages, 2) == [0, 0]
