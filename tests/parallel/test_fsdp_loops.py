"""Fully sharded training in loops as users write them: hooks, dataclasses, in-place operations, loss scaling."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from pipeline.parallel import FSDP, BucketedDDP, ShardedOptimizer

from ..ranks import on_ranks
from .ways import assert_same, synchronize

WIDTH = 4


def by_layer(module):
    return isinstance(module, nn.Linear | Boxed)


RULES = (None, by_layer)


@dataclass
class Box:
    """What a layer returns, not registered with torch's pytrees."""

    out: Tensor
    more: dict[str, Tensor]


class Boxed(nn.Module):
    """A layer whose results are in a dataclass."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        y = self.layer(x)
        return Box(y, {"twice": 2 * y})


class Unboxing(nn.Module):
    """Layers that need each other's buffers in between."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Boxed() for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            box = layer(x)
            x = torch.tanh(box.out) + box.more["twice"]
        return x


def boxed():
    torch.manual_seed(0)
    return Unboxing().double()


def in_place():
    """Build layers whose outputs, views for inputs of three dimensions, are changed in place."""
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(4)]
    return nn.Sequential(*(entry for layer in layers for entry in (layer, nn.ELU(inplace=True)))).double()


def hooked():
    """Build layers with hooks that use their parameters."""
    net = plain()
    for layer in net:
        layer.register_forward_pre_hook(lambda module, args: (args[0] * module.weight.sum(),))
        layer.register_forward_hook(lambda module, args, output: output * module.bias)
    return net


def plain():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4))).double()


def batch(rank):
    return torch.randn(2, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


@on_ranks(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("build", [boxed, in_place, hooked])
def test_dataclasses_in_place_operations_and_hooks_of_the_user_train_like_one_process(context, build, rule):
    alone, fsdp = build(), FSDP(build(), shard=rule)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (alone, fsdp)]
    for _ in range(2):
        sum(alone(batch(rank)).square().mean() for rank in range(context.world_size)).div(2).backward()
        synchronize(fsdp, fsdp(batch(context.rank)).square().mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert_same(fsdp.full_state_dict(), alone.state_dict())


@on_ranks(2)
def test_with_a_sharded_scaler_one_ranks_infinity_skips_the_step_on_all(context):
    fsdp = FSDP(plain())
    optimizer = torch.optim.SGD(fsdp.parameters(), lr=0.1)
    scaler = ShardedGradScaler("cpu", init_scale=4.0)
    for has_infinity in (True, False):
        before = fsdp.full_state_dict()
        synchronize(fsdp, scaler.scale(fsdp(batch(context.rank)).square().mean()))
        if has_infinity and context.rank == context.world_size - 1:
            fsdp.module[0].weight.grad[0] = float("inf")
        scaler.unscale_(optimizer)
        fsdp.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        after = fsdp.full_state_dict()
        assert all(torch.equal(after[name], before[name]) for name in after) == has_infinity
        assert scaler.get_scale() == 2.0


@on_ranks(2)
def test_second_derivatives_are_refused(context):
    fsdp = FSDP(plain())
    x = batch(0).requires_grad_()
    with pytest.raises(RuntimeError, match=r"^FSDP cannot go backward with create_graph=True"):
        torch.autograd.grad(fsdp(x).sum(), x, create_graph=True)


@on_ranks(2)
def test_an_optimizers_step_before_the_finish_is_refused(context):
    fsdp = FSDP(plain())
    optimizer = torch.optim.AdamW(fsdp.parameters(), fused=True)
    fsdp(batch(0)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"^gradients were dropped before finish_gradient_synchronization\(\)"):
        fsdp(batch(0)).sum().backward()
    fsdp.discard_gradients()
    synchronize(fsdp, fsdp(batch(0)).sum())


@on_ranks(2)
def test_gradient_hooks_are_refused(context):
    net = plain()
    hook = net[1].weight.register_hook(torch.neg)
    with pytest.raises(ValueError, match=r"^1\.weight has a gradient hook, which FSDP would not call: remove it$"):
        FSDP(net)
    hook.remove()
    fsdp = FSDP(net)
    net[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(RuntimeError, match=r"^0\.weight has a gradient hook"):
        fsdp(batch(0))


@on_ranks(2)
def test_shards_are_not_taken_for_whole_parameters(context):
    fsdp = FSDP(plain())
    for wrap in (FSDP, lambda module: BucketedDDP(module, 1)):
        with pytest.raises(ValueError, match=r"^module\.0\.weight is a shard of an FSDP module: wrap a module once$"):
            wrap(fsdp)
    with pytest.raises(ValueError, match=r"^the parameters of an FSDP module are shards already"):
        ShardedOptimizer(fsdp.parameters(), torch.optim.SGD, lr=0.1)
    optimizer = ShardedOptimizer(nn.Linear(1, 1).parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=r"^the parameters of an FSDP module are shards already"):
        optimizer.add_param_group({"params": list(fsdp.parameters())})
