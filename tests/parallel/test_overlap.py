"""Properties of the two ways that communicate from hooks during the backward pass."""

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP, OverlapDDP
from pipeline.parallel.overlap import LaunchOrder

SMALL_MB = 150 / 1024**2


def make_ddp(name, net):
    return OverlapDDP(net) if name == "overlap" else BucketedDDP(net, SMALL_MB)


every_way = pytest.mark.parametrize("name", ["overlap", "bucketed"])


class Recorded:
    """A reduction that notes its launch and finds that some parameters have no gradient."""

    def __init__(self, name, gradients, log, without=()):
        self.parameters = [None] * gradients
        self._name, self._log, self._without = name, log, list(without)

    def launch(self):
        self._log.append(self._name)
        return self._without


def test_reductions_launch_in_the_order_given_whatever_is_ready_first():
    log = []
    order = LaunchOrder([Recorded("a", 2, log), Recorded("b", 1, log), Recorded("c", 1, log)])
    order.gradient_ready(2)
    order.gradient_ready(0)
    assert log == []
    order.gradient_ready(0)
    assert log == ["a"]
    order.gradient_ready(1)
    assert log == ["a", "b", "c"]


def test_what_was_not_ready_is_launched_in_the_end_and_the_next_pass_starts_anew():
    log = []
    order = LaunchOrder([Recorded("a", 1, log), Recorded("b", 2, log, without=["w"]), Recorded("c", 1, log)])
    for _ in range(2):
        log.clear()
        order.gradient_ready(0)
        order.gradient_ready(1)
        order.gradient_ready(2)
        assert log == ["a"]
        assert order.launch_rest() == ["w"]
        assert log == ["a", "b", "c"]


def test_a_gradient_too_many_is_an_error():
    order = LaunchOrder([Recorded("a", 1, [])])
    order.gradient_ready(0)
    with pytest.raises(RuntimeError, match="a gradient changed after its all-reduce began"):
        order.gradient_ready(0)


def test_a_gradient_may_be_kept_for_a_later_pass_until_its_reduction_is_launched():
    order = LaunchOrder([Recorded("a", 2, []), Recorded("b", 1, [])])
    order.gradient_ready(0)
    order.gradient_ready(1)
    order.gradient_kept(0)
    order.gradient_kept(1)  # held up by the one before
    order.gradient_ready(0)
    for position in range(2):
        with pytest.raises(RuntimeError, match="a gradient changed after its all-reduce began"):
            order.gradient_kept(position)
    order.launch_rest()
    order.gradient_kept(0)


class Crossed(nn.Module):
    """Two branches of which each rank runs another first, so that their gradients come in another order."""

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


def assert_averaged_in_any_order(context, name):
    net, alone = Crossed(), Crossed()
    ddp = make_ddp(name, net)
    for _ in range(5):
        ddp(batch(context.rank), order_of(context.rank)).backward()
        ddp.finish_gradient_synchronization()
        for rank in range(context.world_size):
            (alone(batch(rank), order_of(rank)) / context.world_size).backward()
        for parameter, wanted in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, wanted.grad)
        net.zero_grad()
        alone.zero_grad()


@every_way
def test_ranks_whose_gradients_come_in_different_orders_agree_on_the_collectives(on_ranks, name):
    on_ranks(assert_averaged_in_any_order, 2, name)


def assert_a_second_pass_is_refused(context, name):
    net, alone = nn.Linear(3, 1), nn.Linear(3, 1)
    ddp = make_ddp(name, net)
    alone.load_state_dict(net.state_dict())
    loss = ddp(torch.ones(2, 3)).square().mean()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inside no_sync"):
        loss.backward(retain_graph=True)
    ddp.finish_gradient_synchronization()
    # After the finish a pass may follow, and inside no_sync() any number of them.
    net.zero_grad()
    with ddp.no_sync():
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
    loss.backward()
    ddp.finish_gradient_synchronization()
    (3 * alone(torch.ones(2, 3)).square().mean()).backward()
    torch.testing.assert_close(net.weight.grad, alone.weight.grad)


@every_way
def test_a_second_pass_before_the_finish_is_an_error_but_inside_no_sync(on_ranks, name):
    on_ranks(assert_a_second_pass_is_refused, 2, name)


def assert_keeping_what_is_in_flight_is_refused(context, name):
    ddp = make_ddp(name, nn.Linear(3, 1))
    loss = ddp(torch.ones(2, 3)).square().mean()
    loss.backward(retain_graph=True)
    with ddp.no_sync(), pytest.raises(RuntimeError, match="a gradient changed after its all-reduce began"):
        loss.backward()
    ddp.finish_gradient_synchronization()


@every_way
def test_a_pass_inside_no_sync_between_one_outside_and_its_finish_is_an_error(on_ranks, name):
    on_ranks(assert_keeping_what_is_in_flight_is_refused, 2, name)


def addresses(context, set_to_none):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = BucketedDDP(net, bucket_size_mb=1)
    by_step = []
    for step in range(3):
        ddp(torch.full((2, 4), float(step))).sum().backward()
        ddp.finish_gradient_synchronization()
        by_step.append([parameter.grad.data_ptr() for parameter in net.parameters()])
        assert len({parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}) == 1
        ddp.zero_grad(set_to_none=set_to_none)
    return by_step


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_lie_in_a_bucket_that_is_allocated_once(on_ranks, set_to_none):
    first, *later = on_ranks(addresses, 1, set_to_none)[0]
    assert all(step == first for step in later)


def assert_averaged_however_gradients_were_dropped(context, name):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = make_ddp(name, net)
    by_step = []
    for step in range(4):
        ddp((context.rank + 1) * batch(step)[:, :4]).sum().backward()
        ddp.finish_gradient_synchronization()
        by_step.append([parameter.grad.clone() for parameter in net.parameters()])
        if step == 0:
            ddp.zero_grad(set_to_none=False)
        elif step == 1:
            ddp.zero_grad(set_to_none=True)
        elif step == 2:
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)  # neither none nor the view
    alone = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    alone.load_state_dict(net.state_dict())
    for step, gradients in enumerate(by_step):
        alone.zero_grad()
        # Gradients are linear in the input, so that their mean is that of the ranks' mean input.
        alone((context.world_size + 1) / 2 * batch(step)[:, :4]).sum().backward()
        torch.testing.assert_close(gradients, [parameter.grad for parameter in alone.parameters()])


@every_way
def test_gradients_may_be_dropped_zeroed_or_replaced_between_steps(on_ranks, name):
    on_ranks(assert_averaged_however_gradients_were_dropped, 2, name)


def storages_without_bound(context):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    ddp = BucketedDDP(net, None)
    ddp(torch.full((2, 4), 1.0 + context.rank)).sum().backward()
    ddp.finish_gradient_synchronization()
    return len({parameter.grad.untyped_storage().data_ptr() for parameter in net.parameters()}), net[1].bias.grad


def test_without_a_bucket_size_all_gradients_are_in_one_bucket(on_ranks):
    assert on_ranks(storages_without_bound, 2) == [(1, torch.tensor([2.0]))] * 2


def test_a_bucket_size_that_holds_nothing_is_an_error():
    for size in (0, -1, float("nan")):
        with pytest.raises(ValueError, match=f"bucket_size_mb={size}: must be above 0"):
            BucketedDDP(nn.Linear(1, 1), bucket_size_mb=size)
