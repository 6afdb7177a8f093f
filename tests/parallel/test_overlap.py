import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP

from ..ranks import on_ranks
from .nets import Net, data, go_backward, share
from .ways import OVERLAPPING, assert_same, every_way, gradients, synchronize

either_way = every_way(150, OVERLAPPING)


class Crossed(nn.Module):
    """Branches that each rank runs in a different order, so that their gradients come in different orders."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, rank):
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(rank))
        for branch in [[3, 1, 0, 2], [0, 1, 2, 3]][rank]:
            x = torch.tanh(self.branches[branch](x))
        return x.sum()


@on_ranks(2)
@either_way
def test_ranks_whose_gradients_come_in_different_orders_agree_on_the_collectives(context, way):
    net, alone = Crossed(), Crossed()
    ddp = way(net)
    for _ in range(3):
        synchronize(ddp, ddp(context.rank))
        for rank in range(context.world_size):
            (alone(rank) / context.world_size).backward()
        assert_same(gradients(net), gradients(alone), rtol=1e-5, atol=1e-6)
        net.zero_grad()
        alone.zero_grad()


@on_ranks(2)
@either_way
def test_another_pass_between_a_synchronised_one_and_the_finish_is_an_error(context, way):
    net, alone = nn.Linear(3, 1), nn.Linear(3, 1)
    ddp = way(net)
    alone.load_state_dict(net.state_dict())
    loss = ddp(torch.ones(2, 3)).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inside no_sync"):
        loss.backward(retain_graph=True)
    with ddp.no_sync(), pytest.raises(RuntimeError, match="a gradient changed after its all-reduce began"):
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


@on_ranks(2)
@either_way
def test_a_step_after_a_failed_backward_pass_is_refused_with_how_to_start_over(context, way):
    ddp, part = way(Net()), share(context, data())
    go_backward(ddp, part, breaks_behind="embedding")
    ddp.zero_grad()
    with pytest.raises(RuntimeError, match=r"after a backward pass that failed, call discard_gradients\(\)"):
        go_backward(ddp, part)
    ddp.discard_gradients()


@on_ranks(1)
@pytest.mark.parametrize("bucket_size_mb", [1, None])
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_lie_in_one_bucket_allocated_once(context, set_to_none, bucket_size_mb):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = BucketedDDP(net, bucket_size_mb)
    places = set()
    for step in range(3):
        synchronize(ddp, ddp(torch.full((2, 4), float(step))).sum())
        places.add(tuple(parameter.grad.data_ptr() for parameter in net.parameters()))
        assert len({parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}) == 1
        ddp.zero_grad(set_to_none=set_to_none)
    assert len(places) == 1


def test_a_bucket_size_that_is_not_above_zero_is_an_error():
    for size in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"bucket_size_mb={size}: must be above 0"):
            BucketedDDP(nn.Linear(1, 1), bucket_size_mb=size)
