"""Properties of the two ways that communicate from hooks during the backward pass."""

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP

from ..ranks import on_ranks
from .ways import OVERLAPPING, assert_same, every_way, gradients, synchronize

either_way = every_way(150, OVERLAPPING)
TOO_LATE = "a gradient changed after its all-reduce began"


class Crossed(nn.Module):
    """Branches of which each rank runs another first, so that their gradients come in another order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x, order):
        for branch in order:
            x = torch.tanh(self.branches[branch](x))
        return x.sum()


def order_of(rank):
    return [0, 1, 2, 3] if rank % 2 else [3, 1, 0, 2]


def batch(rank):
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(rank))


@on_ranks(2)
@either_way
def test_ranks_whose_gradients_come_in_different_orders_agree_on_the_collectives(context, way):
    net, alone = Crossed(), Crossed()
    ddp = way(net)
    for _ in range(3):
        synchronize(ddp, ddp(batch(context.rank), order_of(context.rank)))
        for rank in range(context.world_size):
            (alone(batch(rank), order_of(rank)) / context.world_size).backward()
        assert_same(gradients(net), gradients(alone), rtol=1e-5, atol=1e-6)
        net.zero_grad()
        alone.zero_grad()


@on_ranks(2)
@either_way
def test_a_second_pass_before_the_finish_is_an_error_but_inside_no_sync(context, way):
    net, alone = nn.Linear(3, 1), nn.Linear(3, 1)
    ddp = way(net)
    alone.load_state_dict(net.state_dict())
    loss = ddp(torch.ones(2, 3)).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inside no_sync"):
        loss.backward(retain_graph=True)
    with ddp.no_sync(), pytest.raises(RuntimeError, match=TOO_LATE):
        loss.backward(retain_graph=True)
    ddp.finish_gradient_synchronization()
    # After the finish a pass may follow, and inside no_sync() any number of them.
    net.zero_grad()
    with ddp.no_sync():
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    synchronize(ddp, loss)
    (3 * alone(torch.ones(2, 3)).square().mean()).backward()
    torch.testing.assert_close(net.weight.grad, alone.weight.grad)


@on_ranks(1)
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_lie_in_a_bucket_that_is_allocated_once(context, set_to_none):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = BucketedDDP(net, bucket_size_mb=1)
    places = set()
    for step in range(3):
        synchronize(ddp, ddp(torch.full((2, 4), float(step))).sum())
        places.add(tuple(parameter.grad.data_ptr() for parameter in net.parameters()))
        assert len({parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}) == 1
        ddp.zero_grad(set_to_none=set_to_none)
    assert len(places) == 1


@on_ranks(2)
@either_way
def test_gradients_may_be_dropped_zeroed_or_replaced_between_steps(context, way):
    net = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1))
    ddp = way(net)
    alone = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 1))
    alone.load_state_dict(net.state_dict())
    for step in range(4):
        synchronize(ddp, ddp((context.rank + 1) * batch(step)).sum())
        alone.zero_grad()
        # Gradients are linear in the input, so that their mean is that of the ranks' mean input.
        alone((context.world_size + 1) / 2 * batch(step)).sum().backward()
        assert_same(gradients(net), gradients(alone), rtol=1e-5, atol=1e-6)
        if step < 2:
            ddp.zero_grad(set_to_none=step == 1)
        for parameter in net.parameters() if step == 2 else ():
            parameter.grad = torch.zeros_like(parameter)  # neither none nor the view


@on_ranks(2)
def test_without_a_bucket_size_all_gradients_are_in_one_bucket(context):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = BucketedDDP(net, None)
    synchronize(ddp, ddp(torch.full((2, 4), 1.0 + context.rank)).sum())
    assert len({parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}) == 1
    assert net[1].bias.grad == 2.0


def test_a_bucket_size_that_holds_nothing_is_an_error():
    for size in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"bucket_size_mb={size}: must be above 0"):
            BucketedDDP(nn.Linear(1, 1), bucket_size_mb=size)
