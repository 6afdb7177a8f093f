"""Copies of a wrapped module, and what is saved of it."""

import copy
import io
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

WAYS = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlap": OverlapDDP,
    "bucketed": partial(BucketedDDP, bucket_size_mb=40 / 1024**2),
}
every_way = pytest.mark.parametrize("name", WAYS)


def saved_and_loaded(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda module: pickle.loads(pickle.dumps(module)),
    "torch.save": saved_and_loaded,
}


def build(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))


def loss(module, rank):
    return module(torch.randn(2, 3, generator=torch.Generator().manual_seed(rank))).square().sum()


def gradients(module):
    return [parameter.grad for parameter in module.parameters()]


def hooks(module):
    return [len(parameter._post_accumulate_grad_hooks or ()) for parameter in module.parameters()]


def assert_copy_trains(context, name, way_to_copy):
    ddp = WAYS[name](build(0))
    with ddp.no_sync():
        loss(ddp, context.rank).backward()
    loss(ddp, context.rank).backward()
    copied = COPIES[way_to_copy](ddp)  # with collectives under way
    ddp.finish_gradient_synchronization()
    kept = [gradient.clone() for gradient in gradients(ddp)]
    assert gradients(copied) == [None] * 4
    assert hooks(copied) == hooks(ddp)
    alone = build(0)
    for _ in range(2):
        loss(copied, context.rank).backward()
        copied.finish_gradient_synchronization()
        alone.zero_grad()
        (sum(loss(alone, rank) for rank in range(context.world_size)) / context.world_size).backward()
        torch.testing.assert_close(gradients(copied), gradients(alone))
        copied.zero_grad()
    torch.testing.assert_close(gradients(ddp), kept, rtol=0, atol=0)


@every_way
@pytest.mark.parametrize("way_to_copy", COPIES)
def test_a_copy_trains_like_the_original_and_apart_from_it(on_ranks, name, way_to_copy):
    on_ranks(assert_copy_trains, 2, name, way_to_copy)


def assert_state_is_the_modules(context, name):
    ddp, other = WAYS[name](build(0)), WAYS[name](build(1))
    state = ddp.state_dict()
    torch.testing.assert_close(state, {f"module.{key}": value for key, value in ddp.module.state_dict().items()})
    other.load_state_dict(state)
    torch.testing.assert_close(other.module.state_dict(), build(0).state_dict())


@every_way
def test_the_state_dict_is_the_modules_and_can_be_loaded(on_ranks, name):
    on_ranks(assert_state_is_the_modules, 2, name)
