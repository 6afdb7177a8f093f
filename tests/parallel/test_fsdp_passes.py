"""Fully sharded training whose passes are unusual: uneven use, several passes, interrupted ones, gradients dropped."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.parallel import FSDP

from .failing import Breaks

WIDTH = 4
ROUNDING = 1e-12


class Gated(nn.Module):
    """A layer that uses its second weight only if told to."""

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

    def forward(self, x, used=0):
        for index, layer in enumerate(self.layers):
            x = layer(x, use=index == used)
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


def apart(fsdp, alone):
    """Return how far the sharded weights lie from those of one process."""
    sharded, whole = fsdp.full_state_dict(), alone.state_dict()
    assert sharded.keys() == whole.keys()
    return max(float((sharded[name] - weight).abs().max()) for name, weight in whole.items())


def after_step(fsdp, alone, optimizers):
    fsdp.finish_gradient_synchronization()
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    return apart(fsdp, alone)


def train_with_each_rank_its_own_parameters(context):
    fsdp, alone = sharded_and_alone()
    optimizers = optimizers_of(fsdp, alone)
    batches = parts(context)
    used = [3, 0, 2][: context.world_size]
    found = []
    for _ in range(2):
        fsdp(batches[context.rank], used[context.rank]).square().mean().backward()
        losses = [alone(batch, index).square().mean() for batch, index in zip(batches, used, strict=True)]
        (sum(losses) / context.world_size).backward()
        found.append(after_step(fsdp, alone, optimizers))
    return max(found)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_that_use_different_parameters_of_several_units_start_the_same_collectives(on_ranks, world_size):
    assert max(on_ranks(train_with_each_rank_its_own_parameters, world_size)) < ROUNDING


def train_with_several_passes(context):
    fsdp, alone = sharded_and_alone()
    optimizers = optimizers_of(fsdp, alone)
    found = []
    for step in range(3):
        first, second = parts(context, step), parts(context, step + 9)
        one = fsdp(first[context.rank]).square().mean()
        with torch.inference_mode():
            fsdp(second[0])
        one.backward(retain_graph=True)
        one.backward()
        (fsdp(first[context.rank]).mean() + fsdp(second[context.rank]).mean()).backward()
        whole = alone(torch.cat(first))
        (2 * whole.square().mean() + whole.mean() + alone(torch.cat(second)).mean()).backward()
        found.append(after_step(fsdp, alone, optimizers))
    return max(found)


def test_several_forward_and_backward_passes_are_summed(on_ranks):
    assert max(on_ranks(train_with_several_passes, 2)) < ROUNDING


def count_reduce_scatters(context):
    fsdp, _ = sharded_and_alone()
    sent = []
    original = dist.reduce_scatter_tensor
    dist.reduce_scatter_tensor = lambda *args, **kwargs: (sent.append(1), original(*args, **kwargs))[1]
    fsdp(parts(context)[context.rank]).sum().backward()
    during = len(sent)
    fsdp.finish_gradient_synchronization()
    return during, len(sent)


def test_a_unit_used_twice_is_sent_once_and_all_but_the_first_during_the_backward_pass(on_ranks):
    assert on_ranks(count_reduce_scatters, 2) == [(2, 3)] * 2


def interrupt(*_):
    raise KeyboardInterrupt


def break_backward(module, args, output):
    return Breaks.apply(output)


def train_after_failures(context):
    fsdp, alone = sharded_and_alone()
    optimizers = optimizers_of(fsdp, alone)
    batches = parts(context)
    broken = fsdp.module.layers[1]
    found = []
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
        fsdp(batches[context.rank]).square().mean().backward()
        alone(torch.cat(batches)).square().mean().backward()
        found.append(after_step(fsdp, alone, optimizers))
    return max(found)


def test_zero_grad_drops_what_failed_and_unsynchronised_passes_left(on_ranks):
    assert max(on_ranks(train_after_failures, 2)) < ROUNDING


def clip(context):
    fsdp, alone = sharded_and_alone()
    optimizers = optimizers_of(fsdp, alone)
    batches = parts(context)
    fsdp(batches[context.rank]).square().mean().backward()
    alone(torch.cat(batches)).square().mean().backward()
    fsdp.finish_gradient_synchronization()
    norms = [float(fsdp.clip_grad_norm_(0.01)), float(nn.utils.clip_grad_norm_(alone.parameters(), 0.01))]
    for optimizer in optimizers:
        optimizer.step()
    return norms, apart(fsdp, alone)


@pytest.mark.parametrize("world_size", [1, 3])
def test_gradients_are_clipped_by_the_norm_over_all_ranks(on_ranks, world_size):
    for (found, wanted), difference in on_ranks(clip, world_size):
        assert found == pytest.approx(wanted)
        assert found > 0.01
        assert difference < ROUNDING


class Noting(nn.Linear):
    """A layer with state that is no tensor."""

    noted = None

    def get_extra_state(self):
        return {"noted": self.noted}

    def set_extra_state(self, state):
        self.noted = state["noted"]


def save_and_change(context):
    fsdp = FSDP(Noting(3, 3))
    saved = fsdp.full_state_dict()
    bias = saved["bias"].clone()
    with torch.no_grad():
        fsdp.module.bias.add_(1)
    kept = torch.equal(saved["bias"], bias) and not saved["bias"].requires_grad
    fsdp.load_full_state_dict(saved | {"_extra_state": {"noted": 7}})
    return kept, torch.equal(fsdp.module.bias.detach(), bias), fsdp.module.noted


def test_training_does_not_change_a_saved_state_and_extra_state_goes_round(on_ranks):
    assert on_ranks(save_and_change, 2) == [(True, True, 7)] * 2
