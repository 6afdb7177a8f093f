"""Gradients that share storage: autograd produces them if an operation passes its gradient on unchanged."""

import pytest
import torch
from torch import nn
from torch.nn import Parameter

from pipeline.model import TransformerLM

from ..ranks import on_ranks
from .ways import assert_same, every_way, gradients, synchronize


class AddPosition(nn.Module):
    """Add positions to a batch of one: their gradient is a view of the one passed on to earlier layers."""

    def __init__(self):
        super().__init__()
        self.position = Parameter(torch.randn(2, 4))

    def forward(self, x):
        return x + self.position.unsqueeze(0)


def positioned():
    """Make a net in which that gradient is all-reduced before the earlier layers have read it."""
    first = nn.Unflatten(0, (1, 2, 3))
    return nn.Sequential(first, nn.Linear(3, 4), nn.Linear(4, 4), AddPosition(), nn.Tanh(), nn.Linear(4, 3))


class Joined(nn.Module):
    """Add one parameter to the concatenation of two others: their gradients are parts of its gradient."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = Parameter(torch.randn(3)), Parameter(torch.randn(3)), Parameter(torch.randn(2, 3))

    def forward(self, x):
        return (torch.cat([self.a, self.b]) + self.c.view(-1)) * x


def build(kind):
    torch.manual_seed(0)
    return kind().double()


def loss(module, rank, step):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return module(torch.randn(6, dtype=torch.float64, generator=generator)).square().sum()


def means(kind, world_size, step):
    """Return the mean gradients of the ranks, computed without any parameter's `grad`."""
    net = build(kind)
    mean = sum(loss(net, rank, step) for rank in range(world_size)) / world_size
    return dict(zip(dict(net.named_parameters()), torch.autograd.grad(mean, list(net.parameters())), strict=True))


@on_ranks(2)
@every_way(bucket_bytes=100)
@pytest.mark.parametrize("kind", [positioned, Joined])
def test_gradients_that_share_storage_are_averaged_separately(context, way, kind):
    net = build(kind)
    ddp = way(net)
    first, second, third = (means(kind, context.world_size, step) for step in range(3))
    synchronize(ddp, loss(ddp, context.rank, 0))
    assert_same(gradients(net), first)
    # On top of the gradients of the first pass.
    synchronize(ddp, loss(ddp, context.rank, 1))
    assert_same(gradients(net), {name: first[name] + second[name] for name in first})
    # Left for the finish to reduce.
    ddp.zero_grad()
    with ddp.no_sync():
        loss(ddp, context.rank, 2).backward()
    ddp.finish_gradient_synchronization()
    assert_same(gradients(net), third)


@on_ranks(2)
@every_way(100, ["naive", "overlap"])
def test_a_gradient_with_storage_of_its_own_is_averaged_in_place(context, way):
    torch.manual_seed(0)
    net = TransformerLM(vocab_size=16, context_length=4, d_model=8, num_layers=2, num_heads=2, d_ff=16)
    made = {}

    def note(parameter):
        made[parameter] = parameter.grad.untyped_storage().data_ptr()

    for parameter in net.parameters():
        parameter.register_post_accumulate_grad_hook(note)
    ddp = way(net)
    synchronize(ddp, ddp(torch.arange(8).view(2, 4)).square().mean())
    assert {each: each.grad.untyped_storage().data_ptr() for each in net.parameters()} == made
