"""Tests that need GPUs: training over NCCL, a host that never waits for the GPU, and the allocator's peak."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.formulas.fsdp import FsdpPlan, flat_layout
from pipeline.parallel import FSDP, BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP, ShardedOptimizer
from pipeline.parallel.processes.starting import run_ranks

WORLD_SIZE = 2

pytestmark = pytest.mark.gpu(count=WORLD_SIZE)


class Pair(nn.Module):
    """Two layers, recomputed in the backward pass if wanted."""

    def __init__(self, width, checkpointed):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.checkpointed = checkpointed

    def _run(self, x):
        return x + self.down(torch.tanh(self.up(x)))

    def forward(self, x):
        return checkpoint(self._run, x, use_reentrant=False) if self.checkpointed else self._run(x)


def is_pair(module):
    return isinstance(module, Pair)


REPLICATED = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlap": OverlapDDP,
    "bucketed": partial(BucketedDDP, bucket_size_mb=0.5),
}
SHARDED = {"layers": FSDP, "pairs": partial(FSDP, shard=is_pair)}
WAYS = REPLICATED | SHARDED


def make_net(device, width=256, pairs=4, seed=0, checkpointed=False, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(*(Pair(width, checkpointed) for _ in range(pairs))).to(device, dtype)


def batch(device, rows=64, width=256, dtype=torch.float64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def go_backward(model, x):
    model(x).square().mean().backward()
    model.finish_gradient_synchronization()


def trained_alike(context, name, checkpointed):
    alone, net = make_net(context.device), make_net(context.device, seed=context.rank, checkpointed=checkpointed)
    model = WAYS[name](net)
    plain, x = torch.optim.AdamW(alone.parameters(), fused=True), batch(context.device)
    if name in REPLICATED:
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.AdamW, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(6):
        alone(x).square().mean().backward()
        go_backward(model, x.chunk(context.world_size)[context.rank])
        for each in (plain, optimizer):
            each.step()
            each.zero_grad()
        state = net.state_dict() if name in REPLICATED else model.full_state_dict()
        torch.testing.assert_close(dict(state), dict(alone.state_dict()), rtol=1e-9, atol=1e-12)
    if name in REPLICATED:
        restored = torch.optim.AdamW(net.parameters(), fused=True)
        restored.load_state_dict(optimizer.state_dict())
        for parameter, wanted in zip(net.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(restored.state[parameter]["exp_avg"], plain.state[wanted]["exp_avg"])


@pytest.mark.parametrize(
    ("name", "checkpointed"), [*((name, False) for name in WAYS), *((name, True) for name in SHARDED)]
)
def test_training_over_nccl_equals_one_process_with_the_full_batch_at_every_step(name, checkpointed):
    run_ranks(trained_alike, WORLD_SIZE, backend="nccl", device_type="cuda", args=(name, checkpointed))


def never_waits(context, name, options):
    model = WAYS[name](make_net(context.device, dtype=torch.float32), **options)
    if name in REPLICATED:
        optimizer = ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    else:
        optimizer = torch.optim.AdamW(model.parameters())
    x = batch(context.device, dtype=torch.float32)
    for step in range(4):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        go_backward(model, x)
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")


IN_BF16 = {"compute_dtype": torch.bfloat16}


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in WAYS), *((name, IN_BF16) for name in SHARDED)])
def test_the_host_does_not_wait_for_the_gpu_in_a_step(name, options):
    run_ranks(never_waits, WORLD_SIZE, backend="nccl", device_type="cuda", args=(name, options))


def make_parameters(device):
    values = torch.arange(16.0, device=device).reshape(4, 4)
    convolution = values.reshape(2, 2, 2, 2).contiguous(memory_format=torch.channels_last)
    # Two of each kind, so that each rank has to receive some.
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


def test_parameters_of_any_layout_or_all_frozen_work_over_nccl():
    run_ranks(in_any_layout, WORLD_SIZE, backend="nccl", device_type="cuda")


WIDTH, PAIRS = 2048, 6


def bytes_of_a_step(context, compute_dtype):
    fsdp = FSDP(make_net(context.device, WIDTH, PAIRS, dtype=torch.float32), compute_dtype, is_pair)
    x = batch(context.device, rows=1, width=WIDTH, dtype=torch.float32)
    # The second step is counted: by then the libraries have their workspaces.
    for _ in range(2):
        fsdp.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        fsdp(x).sum().backward()
        fsdp.finish_gradient_synchronization()
    storages = {shard.untyped_storage().data_ptr(): shard.untyped_storage() for shard in fsdp.parameters()}
    kept = sum(storage.nbytes() for storage in storages.values())
    return kept, torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
def test_kept_bytes_equal_the_formula_and_the_peak_is_within_2_percent(compute_dtype):
    sizes = [4 * WIDTH**2, 4 * WIDTH, 4 * WIDTH**2, WIDTH]
    itemsize = 4 if compute_dtype is None else compute_dtype.itemsize
    plan = FsdpPlan((flat_layout(sizes, WORLD_SIZE),) * PAIRS, 0, 4, itemsize)
    wanted = plan.gathered_bytes + plan.collecting_bytes
    for kept, peak in run_ranks(bytes_of_a_step, WORLD_SIZE, backend="nccl", device_type="cuda", args=(compute_dtype,)):
        assert kept == plan.persistent_bytes
        assert peak == pytest.approx(wanted, rel=0.02)
