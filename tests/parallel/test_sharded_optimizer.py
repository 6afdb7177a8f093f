import io
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from pipeline.parallel import ShardedOptimizer

from ..ranks import on_ranks
from .refusals import refusal
from .training import add_gradients, assert_alike, groups_of, make_net, make_pair, train, train_alike

CLASSES = {
    "AdamW": (AdamW, {"lr": 0.05, "weight_decay": 0.1}),
    "AdamW, not foreach": (AdamW, {"lr": 0.05, "foreach": False}),
    "AdamW, fused": (AdamW, {"lr": 0.05, "fused": True}),
    "SGD": (SGD, {"lr": 0.05}),
    "SGD, momentum": (SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}
every_class = pytest.mark.parametrize("name", CLASSES)


@contextmanager
def broadcasts_recorded():
    real, calls = dist.broadcast, []

    def broadcast(tensor, src, **kwargs):
        calls.append((tensor, src))
        return real(tensor, src=src, **kwargs)

    with mock.patch.object(dist, "broadcast", broadcast):
        yield calls


@on_ranks(1, 2, 3)
@every_class
def test_training_and_state_equal_the_plain_optimizers_at_every_step(context, name):
    optimizer_cls, arguments = CLASSES[name]
    sharded, plain = make_pair(optimizer_cls, groups_of, **arguments)
    assert isinstance(sharded[1], Optimizer)
    for step in range(5):
        train_alike(sharded, plain, [step])


def two_parameters():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 1)).double()


@on_ranks(3)
@every_class
def test_a_rank_may_have_no_share(context, name):
    optimizer_cls, arguments = CLASSES[name]
    sharded, plain = make_pair(optimizer_cls, make=two_parameters, **arguments)
    train_alike(sharded, plain, range(3))
    sharded[1].load_state_dict(plain[1].state_dict())
    assert len(sharded[1].state) == (0 if name == "SGD" or context.rank == 2 else 1)


@on_ranks(1, 2, 3)
def test_parameter_groups_may_be_added_between_steps(context):
    sharded, plain = make_pair(SGD, lambda net: net[0].parameters(), lr=0.1, momentum=0.9)
    for step, layer in enumerate((2, 4)):
        train_alike(sharded, plain, [step])
        for net, optimizer in (sharded, plain):
            optimizer.add_param_group({"params": list(net[layer].parameters()), "lr": 0.01 * (1 + step)})
            assert len(optimizer.param_groups) == 2 + step
    again = {"params": [sharded[0][0].weight]}
    assert "appear in more than one parameter group" in refusal(ValueError, sharded[1].add_param_group, again)
    train_alike(sharded, plain, [2])


class NotesSteps(SGD):
    """Keeps a count in its groups, as schedule-free optimizers do; takes a keyword with each step."""

    def step(self, closure=None, *, scale=1.0):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] *= scale
        return super().step(closure)


@on_ranks(1, 2, 3)
def test_step_keywords_reach_the_optimizer_and_closures_see_and_set_hyperparameters(context):
    pairs = make_pair(NotesSteps, lr=0.1)
    for net, optimizer in pairs:
        add_gradients(net, 0)
        optimizer.step(scale=3.0)
        optimizer.step(None, scale=0.5)

    def closure(net, optimizer):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.1 / optimizer.param_groups[0]["steps"]
        loss = net(torch.ones(2, 4, dtype=torch.float64)).square().mean()
        loss.backward()
        return loss

    losses = [[pair[1].step(partial(closure, *pair)).item() for _ in range(3)] for pair in pairs]
    assert losses[0] == pytest.approx(losses[1])
    assert len(set(losses[0])) == 3
    assert_alike(*pairs)


@on_ranks(2)
def test_schedulers_change_the_hyperparameters_of_the_next_step(context):
    sharded, plain = make_pair(AdamW, groups_of)
    for net, optimizer in (sharded, plain):  # the scheduler changes betas too
        train(net, optimizer, range(5), OneCycleLR(optimizer, max_lr=[0.1, 0.2], total_steps=6))
    assert_alike(sharded, plain)


@on_ranks(2)
def test_a_step_broadcasts_each_trained_parameter_once_from_its_owner(context):
    net = make_net()
    net[2].requires_grad_(False)
    sharded = ShardedOptimizer(net.parameters(), AdamW)
    add_gradients(net, 0)
    with broadcasts_recorded() as calls:
        sharded.step()
    assert [tensor.numel() for tensor, _ in calls] == [28, 7, 5, 1]
    by_owner = [sum(tensor.numel() for tensor, src in calls if src == rank) for rank in range(2)]
    assert tuple(by_owner) == sharded.shard_elements


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


# Two of each kind, so that each of two ranks has to receive some.
DENSE = {
    "transposed": lambda: values(3, 4).t(),
    "one column": lambda: values(1, 4).t(),
    "permuted": lambda: values(2, 3, 4).permute(1, 2, 0),
    "3×3 convolution": lambda: nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last).weight.detach().fill_(1.0),
    "1×1 convolution": lambda: nn.Conv2d(4, 8, 1).to(memory_format=torch.channels_last).weight.detach().fill_(1.0),
    "one element": lambda: values(3, 2)[:1, 0],
    "no elements": lambda: values(3, 0).t(),
    "no dimension": lambda: torch.tensor(1.0),
}
WITH_GAPS = {"every other column": lambda: values(4, 4)[:, ::2], "part of a transposed": lambda: values(4, 4).t()[:3]}


def of_every_layout():
    return nn.ParameterList(Parameter(make()) for make in (DENSE | WITH_GAPS).values() for _ in range(2))


def step_on_values(parameters, optimizer):
    for parameter in parameters:
        parameter.grad = values(*parameter.shape) + 1
    optimizer.step()


@on_ranks(2)
def test_every_layout_is_updated_on_every_rank_and_only_tensors_with_gaps_are_copied(context):
    sharded, plain = make_pair(SGD, make=of_every_layout, lr=0.5)
    for _ in range(2):
        with broadcasts_recorded() as calls:
            step_on_values(*sharded)
        step_on_values(*plain)
        torch.testing.assert_close(list(sharded[0]), list(plain[0]), rtol=0, atol=0, check_stride=True)
    sent = [tensor for tensor, _ in calls]
    assert all(tensor.is_contiguous() for tensor in sent)  # NCCL accepts no others
    copied = {tensor.data_ptr() for tensor in sent} - {parameter.data_ptr() for parameter in sharded[0]}
    assert len(copied) <= 2 * len(WITH_GAPS)


@on_ranks(2)
def test_state_of_every_layout_is_saved_as_by_the_plain_optimizer(context):
    sharded, plain = make_pair(AdamW, make=of_every_layout, foreach=True)
    step_on_values(*sharded)
    step_on_values(*plain)
    saved = sharded[1].state_dict()
    torch.testing.assert_close(saved["state"], plain[1].state_dict()["state"], rtol=0, atol=0, check_stride=True)
    stream = io.BytesIO()
    torch.save(saved, stream)
    stream.seek(0)
    restored = AdamW(sharded[0], foreach=True)
    restored.load_state_dict(torch.load(stream))
    step_on_values(sharded[0], restored)
    step_on_values(*plain)
    torch.testing.assert_close(list(sharded[0]), list(plain[0]), rtol=0, atol=0)
