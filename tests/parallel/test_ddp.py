import copy
import gc
import pickle
from functools import partial

import pytest
import torch
from torch import nn

from ..ranks import on_ranks
from . import nets
from .nets import data, go_backward, loss, share
from .ways import assert_same, every_way, gradients, step_all, synchronize

pytestmark = every_way(bucket_bytes=300)  # a few buckets for the nets below
Net = partial(nets.Net, tied=True)


def gradients_alone(batch, branches=()):
    net = Net()
    loss(net(batch, branches)).backward()
    return gradients(net)


@on_ranks(1, 2, 3)
def test_training_equals_one_process_with_the_full_batch_at_every_step(context, way):
    alone, net = Net(), Net(seed=context.rank)
    ddp = way(net)
    assert ddp.module is net
    assert_same(net.state_dict(), alone.state_dict())  # buffers of every dtype too
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.05) for module in (alone, ddp)]
    for step in range(6):
        branches = [(), (0,), (0, 1)][step % 3]
        loss(alone(data(step), branches)).backward()
        synchronize(ddp, loss(ddp(share(context, data(step)), branches=branches)))
        assert_same(gradients(net), gradients(alone))
        step_all(optimizers, set_to_none=step % 2 == 0)
        for parameter in (*alone.parameters(), *net.parameters()) if step == 3 else ():
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)  # neither None nor a view of a buffer
        assert_same(net.state_dict(), alone.state_dict())


@on_ranks(3)
def test_a_gradient_missing_on_some_ranks_is_zero_there_and_one_missing_on_all_is_none(context, way):
    net = Net()
    ddp = way(net)
    for using in range(context.world_size):
        synchronize(ddp, loss(ddp(share(context, data()), (1,) if context.rank == using else ())))
        alone, parts = Net(), data().chunk(context.world_size)
        losses = [loss(alone(part, (1,) if rank == using else ())) for rank, part in enumerate(parts)]
        torch.stack(losses).mean().backward()
        assert_same(gradients(net), gradients(alone))
        assert net.branches[0].weight.grad is None
        net.zero_grad()


@on_ranks(2)
def test_gradients_inside_no_sync_are_summed_and_averaged_by_the_next_pass_outside(context, way):
    net = Net()
    ddp = way(net)
    for _ in range(2):
        parts = share(context, data()).chunk(2)
        with ddp.no_sync():
            loss(ddp(parts[0], (0,))).backward()
        assert_same(gradients(net), gradients_alone(parts[0], (0,)))  # each rank's own
        synchronize(ddp, loss(ddp(parts[1], ())))
        alone = Net()
        for rank_part in data().chunk(context.world_size):
            for part, branches in zip(rank_part.chunk(2), [(0,), ()], strict=True):
                (loss(alone(part, branches)) / context.world_size).backward()
        assert_same(gradients(net), gradients(alone))
        net.zero_grad(set_to_none=False)


@on_ranks(2)
def test_a_module_whose_wrapper_is_gone_can_be_wrapped_again(context, way):
    net = Net()
    way(net)
    gc.collect()
    ddp = way(net)
    for _ in range(2):
        synchronize(ddp, loss(ddp(share(context, data()))))
        assert_same(gradients(net), gradients_alone(data()))
        net.zero_grad()


class Weights(nn.Module):
    """Interleaved parameters of four dtypes, whose gradients are multiples of the input."""

    def __init__(self):
        super().__init__()
        dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.bfloat16, torch.float16, torch.float32)
        self.weights = nn.ParameterList(torch.ones(3, dtype=dtype) for dtype in dtypes)

    def forward(self, factor):
        return sum((place * factor * weight).double().sum() for place, weight in enumerate(self.weights, 1))


@on_ranks(2)
def test_every_parameter_keeps_its_dtype_and_fp16_does_not_overflow(context, way):
    net = Weights()
    ddp = way(net)
    synchronize(ddp, ddp(8192.0 + 2048 * context.rank))
    for place, weight in enumerate(net.weights, 1):
        assert torch.equal(weight.grad, torch.full_like(weight, 9216.0 * place))


@on_ranks(2)
def test_non_contiguous_parameters_are_averaged_element_by_element(context, way):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 1)).double()
        return net.to(memory_format=torch.channels_last)

    pictures = torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    net, alone = build(), build()
    ddp = way(net)
    # Rank 0 uses nothing, so it has no gradient whose layout it could follow.
    if context.rank == 1:
        ddp(pictures).mean().backward()
    ddp.finish_gradient_synchronization()
    (alone(pictures).mean() / context.world_size).backward()
    assert_same(gradients(net), gradients(alone))


@on_ranks(2)
@pytest.mark.parametrize("behind", [("branches", "branches"), ("branches", "embedding"), ("embedding", None)], ids=str)
def test_training_continues_after_discarding_a_failed_backward_pass(context, way, behind):
    net, part = Net(), share(context, data())
    ddp = way(net)
    for _ in range(2):
        go_backward(ddp, part, behind[context.rank])
        ddp.discard_gradients()
        assert all(parameter.grad is None for parameter in net.parameters())
        synchronize(ddp, loss(ddp(part, (0,))))
    assert_same(gradients(net), gradients_alone(data(), (0,)))


@on_ranks(2)
def test_a_copy_trains_like_the_original_and_independently_of_it(context, way):
    def hooks(module):
        return [len(parameter._post_accumulate_grad_hooks or ()) for parameter in module.parameters()]

    part = share(context, data())
    for duplicate in (copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))):
        ddp = way(Net())
        with ddp.no_sync():
            loss(ddp(part, (0,))).backward()
        loss(ddp(part, (0,))).backward()
        copied = duplicate(ddp)  # while collectives are running
        ddp.finish_gradient_synchronization()
        kept = {name: gradient.clone() for name, gradient in gradients(ddp).items() if gradient is not None}
        assert set(gradients(copied).values()) == {None}
        assert hooks(copied) == hooks(ddp)
        for _ in range(2):
            synchronize(copied, loss(copied(part)))
            assert_same(gradients(copied.module), gradients_alone(data()))
            copied.zero_grad()
        assert_same({name: gradients(ddp)[name] for name in kept}, kept, rtol=0, atol=0)
