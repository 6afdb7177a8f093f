"""What the course asks of data-parallel wrappers and of a sharded optimizer, asked of ours through its adapters."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from pipeline.parallel.processes.starting import run_ranks

from ..ranks import on_ranks
from . import adapters

WORLD_SIZE = 2


class Model(nn.Module):
    """Linear layers, one with a frozen bias, and a frozen parameter that no layer uses; the middle ones may be tied."""

    def __init__(self, tied):
        super().__init__()
        self.first, self.second = nn.Linear(10, 12, bias=False), nn.Linear(12, 12)
        self.third, self.last = nn.Linear(12, 12), nn.Linear(12, 5, bias=False)
        self.second.bias.requires_grad = False
        self.fixed = nn.Parameter(torch.tensor([2.0, 2.0]), requires_grad=False)
        if tied:
            self.third.weight = self.second.weight

    def forward(self, x):
        for layer in (self.first, self.second, self.third):
            x = layer(x).relu()
        return self.last(x)


def make(seed, tied, device):
    torch.manual_seed(seed)
    return Model(tied).to(device)


def of_2025(module):
    return adapters.get_ddp_individual_parameters(module), adapters.ddp_individual_parameters_on_after_backward


def in_buckets(bucket_size_mb, module):
    return adapters.get_ddp_bucketed(module, bucket_size_mb), adapters.ddp_bucketed_on_after_backward


def of_2026(module):
    return adapters.get_ddp(module), adapters.ddp_on_after_backward


def sharded(compute_dtype, module):
    return adapters.get_fsdp(module, compute_dtype), adapters.fsdp_on_after_backward


WAYS = {
    "2025": of_2025,
    "2025 in buckets of 1 kB": partial(in_buckets, 0.001),
    "2025 in one bucket": partial(in_buckets, 1.0),
    "2026": of_2026,
    "2026 sharded": partial(sharded, None),
    "2026 sharded, fp16": partial(sharded, torch.float16),
}


def train_as_one_process_does(context, name, tied):
    """Train on a part of each batch, shuffled anew at every step, from weights that only rank 0 has at first."""
    alone, own = make(0, tied, context.device), make(context.rank, tied, context.device)
    wrapped, on_after_backward = WAYS[name](own)
    plain, optimizer = (torch.optim.SGD(module.parameters(), lr=0.1) for module in (alone, wrapped))
    x, y = torch.randn(20, 10, device=context.device), torch.randn(20, 5, device=context.device)
    torch.distributed.broadcast(x, 0)
    torch.distributed.broadcast(y, 0)
    near = {"rtol": 2e-2, "atol": 2e-3} if "fp16" in name else {"rtol": 1e-5, "atol": 1e-6}
    for step in range(5):
        torch.testing.assert_close(dict(whole(wrapped)), dict(whole(alone)), **near)
        order = torch.randperm(20, generator=torch.Generator().manual_seed(step)).to(context.device)
        mine = order.chunk(context.world_size)[context.rank]
        for model, rows, stepping in ((alone, order, plain), (wrapped, mine, optimizer)):
            stepping.zero_grad()
            mse_loss(model(x[rows]).float(), y[rows]).backward()
        on_after_backward(wrapped, optimizer)
        plain.step()
        optimizer.step()
    torch.testing.assert_close(dict(whole(wrapped)), dict(whole(alone)), **near)
    assert not torch.equal(alone.first.weight, make(0, tied, context.device).first.weight)


def whole(model):
    """Return whole tensors by their names in the model that was wrapped."""
    if hasattr(model, "full_state_dict"):
        return adapters.fsdp_gather_full_params(model)
    return getattr(model, "module", model).state_dict()


def optimize_as_one_process_does(context, tied):
    """Train with unsharded AdamW, and with its state on the ranks."""
    options = {"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.999), "eps": 1e-8}
    alone, own = make(0, tied, context.device), make(0, tied, context.device)
    plain = torch.optim.AdamW(alone.parameters(), **options)
    optimizer = adapters.get_sharded_optimizer(own.parameters(), torch.optim.AdamW, **options)
    for step in range(10):
        x, y = (torch.randn(32, size, generator=torch.Generator().manual_seed(step)) for size in (10, 5))
        for model, stepping in ((alone, plain), (own, optimizer)):
            stepping.zero_grad()
            mse_loss(model(x.to(context.device)), y.to(context.device)).backward()
            stepping.step()
    torch.testing.assert_close(own.state_dict(), alone.state_dict())
    assert len(optimizer.state) < len(plain.state)


@on_ranks(WORLD_SIZE)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", WAYS)
def test_wrapped_models_train_as_one_process_does(context, name, tied):
    train_as_one_process_does(context, name, tied)


@on_ranks(WORLD_SIZE)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_sharded_optimizer_trains_as_a_whole_one_does(context, tied):
    optimize_as_one_process_does(context, tied)


def train_all(context):
    for tied in (False, True):
        for name in WAYS:
            train_as_one_process_does(context, name, tied)
        optimize_as_one_process_does(context, tied)


@pytest.mark.gpu(count=WORLD_SIZE)
def test_all_of_it_over_nccl():
    run_ranks(train_all, WORLD_SIZE, backend="nccl", device_type="cuda")
