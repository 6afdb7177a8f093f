from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.parallel import FSDP

from ..ranks import on_ranks
from .modules import Breaks
from .ways import assert_same, synchronize

WIDTH = 4


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.always = nn.Linear(WIDTH, WIDTH)
        self.sometimes = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x, use=False):
        y = torch.tanh(self.always(x))
        return y * self.sometimes if use else y


class Net(nn.Module):
    """Four layers, of which the first and the last share a weight, in float64."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Gated() for _ in range(4))
        self.layers[3].always.weight = self.layers[0].always.weight
        self.double()

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            x = layer(x, use=index == 0)
        return x


def by_layer(module):
    return isinstance(module, Gated)


def parts(context, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(6, WIDTH, dtype=torch.float64, generator=generator).chunk(context.world_size)


def sharded_and_alone():
    net = Net()
    return FSDP(net, shard=by_layer), Net()


def optimizers_of(*modules):
    return [torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1) for module in modules]


def step(fsdp, alone, optimizers):
    """Take a step with what gradients there are; the sharded weights are then those of one process."""
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    assert_same(fsdp.full_state_dict(), alone.state_dict())


@on_ranks(2)
def test_several_forward_and_backward_passes_are_summed(context):
    fsdp, alone = sharded_and_alone()
    optimizers = optimizers_of(fsdp, alone)
    for seed in range(3):
        first, second = parts(context, seed), parts(context, seed + 9)
        one = fsdp(first[context.rank]).square().mean()
        with torch.inference_mode():
            fsdp(second[0])
        one.backward(retain_graph=True)
        one.backward()
        synchronize(fsdp, fsdp(first[context.rank]).mean() + fsdp(second[context.rank]).mean())
        whole = alone(torch.cat(first))
        (2 * whole.square().mean() + whole.mean() + alone(torch.cat(second)).mean()).backward()
        step(fsdp, alone, optimizers)


@on_ranks(2)
def test_a_unit_used_twice_is_sent_once_and_all_but_the_first_during_the_backward_pass(context):
    fsdp, _ = sharded_and_alone()
    with mock.patch.object(dist, "reduce_scatter_tensor", wraps=dist.reduce_scatter_tensor) as sent:
        with fsdp.no_sync():
            fsdp(parts(context)[context.rank]).sum().backward()
        assert sent.call_count == 0
        fsdp(parts(context)[context.rank]).sum().backward()
        assert sent.call_count == 2
        fsdp.finish_gradient_synchronization()
        assert sent.call_count == 3


def interrupt(*_):
    raise KeyboardInterrupt


def break_backward(module, args, output):
    return Breaks.apply(output)


@on_ranks(2)
def test_zero_grad_drops_what_failed_and_unsynchronised_passes_left(context):
    fsdp, alone = sharded_and_alone()
    optimizers, batches = optimizers_of(fsdp, alone), parts(context)
    broken = fsdp.module.layers[1]
    for _ in range(2):
        hook = broken.always.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            fsdp(batches[context.rank])
        hook.remove()
        hook = broken.register_forward_hook(break_backward)
        with pytest.raises(MemoryError):
            fsdp(batches[context.rank]).sum().backward()
        hook.remove()
        with fsdp.no_sync():
            fsdp(batches[context.rank]).sum().backward()
        fsdp.zero_grad()
        synchronize(fsdp, fsdp(batches[context.rank]).square().mean())
        alone(torch.cat(batches)).square().mean().backward()
        step(fsdp, alone, optimizers)


@on_ranks(1, 3)
def test_gradients_are_clipped_by_the_norm_over_all_ranks_of_what_is_sharded_and_what_is_not(context):
    net, alone = Net(), Net()
    fsdp = FSDP(net, shard=lambda module: module in net.layers[1:3])
    optimizers, batches = optimizers_of(fsdp, alone), parts(context)
    synchronize(fsdp, fsdp(batches[context.rank]).square().mean())
    alone(torch.cat(batches)).square().mean().backward()
    norm = float(fsdp.clip_grad_norm_(0.01))
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(alone.parameters(), 0.01)))
    assert norm > 0.01
    step(fsdp, alone, optimizers)


class Noting(nn.Linear):
    noted = None

    def get_extra_state(self):
        return self.noted

    def set_extra_state(self, state):
        self.noted = state


@on_ranks(2)
def test_training_does_not_change_a_saved_state_and_extra_state_goes_round(context):
    fsdp = FSDP(Noting(3, 3))
    saved = fsdp.full_state_dict()
    bias = saved["bias"].clone()
    with torch.no_grad():
        fsdp.module.bias.add_(1)
    assert torch.equal(saved["bias"], bias)
    assert not saved["bias"].requires_grad
    fsdp.load_full_state_dict(saved | {"_extra_state": 7})
    assert torch.equal(fsdp.module.bias.detach(), bias)
    assert fsdp.module.noted == 7
