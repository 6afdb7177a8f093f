"""What only GPUs can show: the same training through NCCL, with the host never waiting for it."""

from functools import partial

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP, ShardedOptimizer
from pipeline.parallel.processes.starting import run_ranks

WORLD_SIZE = 2
WAYS = {"naive": NaiveDDP, "flat": FlatDDP, "overlap": OverlapDDP, "bucketed": partial(BucketedDDP, bucket_size_mb=0.5)}

pytestmark = pytest.mark.gpu(count=WORLD_SIZE)


def make_net(seed, device):
    torch.manual_seed(seed)
    layers = [nn.Linear(256, 256, dtype=torch.float64) for _ in range(4)]
    return nn.Sequential(*layers).to(device)


def batch(device):
    return torch.randn(8, 256, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(device)


def trained_alike(context, name):
    alone, net = make_net(0, context.device), make_net(context.rank, context.device)
    ddp = WAYS[name](net)
    plain, sharded = torch.optim.AdamW(alone.parameters()), ShardedOptimizer(ddp.parameters(), torch.optim.AdamW)
    x = batch(context.device)
    for _ in range(4):
        alone(x).square().mean().backward()
        ddp(x.chunk(context.world_size)[context.rank]).square().mean().backward()
        ddp.finish_gradient_synchronization()
        for optimizer in (plain, sharded):
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(net.state_dict(), alone.state_dict(), rtol=1e-9, atol=1e-12)
    restored = torch.optim.AdamW(net.parameters())
    restored.load_state_dict(sharded.state_dict())
    for parameter, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(restored.state[parameter]["exp_avg"], plain.state[wanted]["exp_avg"])


@pytest.mark.parametrize("name", WAYS)
def test_training_over_nccl_equals_one_process_with_the_full_batch_at_every_step(name):
    run_ranks(trained_alike, WORLD_SIZE, backend="nccl", device_type="cuda", args=(name,))


def never_waits(context, name):
    ddp = WAYS[name](make_net(0, context.device))
    sharded = ShardedOptimizer(ddp.parameters(), torch.optim.SGD, lr=0.1)
    x = batch(context.device)
    for step in range(3):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        ddp(x).square().mean().backward()
        ddp.finish_gradient_synchronization()
        sharded.step()
        sharded.zero_grad()
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", WAYS)
def test_the_host_does_not_wait_for_the_gpu_in_a_step(name):
    run_ranks(never_waits, WORLD_SIZE, backend="nccl", device_type="cuda", args=(name,))


def make_parameters(device):
    values = torch.arange(16.0, device=device).reshape(4, 4)
    convolution = values.reshape(2, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    # Of each kind two, so that each rank has to receive some.
    return [nn.Parameter(value.clone()) for value in (values.t(), convolution) for _ in range(2)] + [
        nn.Parameter(values.clone()[:, ::2]) for _ in range(2)
    ]


def in_any_layout(context):
    shared, alone = make_parameters(context.device), make_parameters(context.device)
    sharded, plain = ShardedOptimizer(shared, torch.optim.AdamW), torch.optim.AdamW(alone)
    sharded.step()  # with nothing to do yet
    for _ in range(2):
        for parameters, optimizer in ((shared, sharded), (alone, plain)):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        torch.testing.assert_close(shared, alone, check_stride=True)
    saved = [state["exp_avg"] for _, state in sorted(sharded.state_dict()["state"].items())]
    torch.testing.assert_close(saved, [plain.state[parameter]["exp_avg"].cpu() for parameter in alone])
    frozen = ShardedOptimizer([parameter.detach().clone() for parameter in shared], torch.optim.AdamW)
    frozen.step()


def test_parameters_of_any_layout_or_all_frozen_over_nccl():
    run_ranks(in_any_layout, WORLD_SIZE, backend="nccl", device_type="cuda")
