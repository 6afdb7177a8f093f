from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from pipeline.parallel import FSDP, BucketedDDP, ShardedOptimizer

from ..ranks import on_ranks
from .modules import Boxed, Unboxing
from .refusals import refusal
from .ways import assert_same, step_all, synchronize

WIDTH = 4


@dataclass
class Box:
    """A layer's output, of a type that is not registered with torch's pytrees."""

    out: Tensor
    more: dict[str, Tensor]


def boxed():
    torch.manual_seed(0)
    return Unboxing(Box, WIDTH).double()


def in_place():
    """Build layers whose outputs (views, if the input has three dimensions) are changed in place."""
    return nn.Sequential(*(entry for layer in plain() for entry in (layer, nn.ELU(inplace=True))))


def hooked():
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
@pytest.mark.parametrize("with_biases", [False, True])
@pytest.mark.parametrize("build", [boxed, in_place, hooked])
def test_dataclasses_in_place_operations_and_user_hooks_train_like_one_process(context, build, with_biases):
    shard = (lambda module: isinstance(module, nn.Linear | Boxed)) if with_biases else None
    alone, fsdp = build(), FSDP(build(), shard=shard)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (alone, fsdp)]
    for _ in range(2):
        sum(alone(batch(rank)).square().mean() for rank in range(context.world_size)).div(2).backward()
        synchronize(fsdp, fsdp(batch(context.rank)).square().mean())
        step_all(optimizers)
    assert_same(fsdp.full_state_dict(), alone.state_dict())


@on_ranks(2)
def test_second_derivatives_steps_before_the_finish_and_gradient_hooks_are_refused(context):
    net = plain()
    hook = net[1].weight.register_hook(torch.neg)
    assert refusal(ValueError, FSDP, net) == "1.weight has a gradient hook, which FSDP would not call: remove it"
    hook.remove()
    fsdp, x = FSDP(net), batch(0).requires_grad_()
    with pytest.raises(RuntimeError, match=r"^FSDP cannot go backward with create_graph=True"):
        torch.autograd.grad(fsdp(x).sum(), x, create_graph=True)
    fsdp.discard_gradients()
    optimizer = torch.optim.AdamW(fsdp.parameters(), fused=True)
    fsdp(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match=r"^gradients were dropped before finish_gradient_synchronization\(\)"):
        fsdp(x).sum().backward()
    fsdp.discard_gradients()
    synchronize(fsdp, fsdp(x).sum())
    net[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    assert refusal(RuntimeError, fsdp, x).startswith("0.weight has a gradient hook")


@on_ranks(2)
def test_shards_are_refused_as_whole_parameters(context):
    fsdp = FSDP(plain())
    told = "module.0.weight is a shard of an FSDP module: wrap a module once"
    assert refusal(ValueError, FSDP, fsdp) == refusal(ValueError, BucketedDDP, fsdp, 1) == told
    told, shards = "the parameters of an FSDP module are shards already", list(fsdp.parameters())
    assert refusal(ValueError, ShardedOptimizer, shards, torch.optim.SGD).startswith(told)
    optimizer = ShardedOptimizer(nn.Linear(1, 1).parameters(), torch.optim.SGD)
    assert refusal(ValueError, optimizer.add_param_group, {"params": shards}).startswith(told)
