"""What only GPUs can show of fully sharded training: streams, the host that never waits, the allocator's peak."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pipeline.formulas.fsdp import FsdpPlan, flat_layout
from pipeline.parallel import FSDP
from pipeline.parallel.processes.starting import run_ranks

WORLD_SIZE = 2
RULES = {"layers": None, "pairs": lambda module: isinstance(module, Pair)}

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


def make_net(device, width=256, pairs=6, seed=0, checkpointed=False, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(*(Pair(width, checkpointed) for _ in range(pairs))).to(device, dtype)


def batch(device, rows=64, width=256, dtype=torch.float64):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(0)).to(device, dtype)


def trained_alike(context, rule, checkpointed):
    alone, net = make_net(context.device), make_net(context.device, seed=context.rank, checkpointed=checkpointed)
    fsdp = FSDP(net, shard=RULES[rule])
    optimizers = [torch.optim.AdamW(module.parameters(), fused=True) for module in (alone, fsdp)]
    x = batch(context.device)
    for _ in range(8):
        alone(x).square().mean().backward()
        fsdp(x.chunk(context.world_size)[context.rank]).square().mean().backward()
        fsdp.finish_gradient_synchronization()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(fsdp.full_state_dict(), dict(alone.state_dict()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_training_over_nccl_equals_one_process_with_the_full_batch_at_every_step(rule, checkpointed):
    run_ranks(trained_alike, WORLD_SIZE, backend="nccl", device_type="cuda", args=(rule, checkpointed))


def never_waits(context, rule, compute_dtype):
    fsdp = FSDP(make_net(context.device, dtype=torch.float32), compute_dtype, RULES[rule])
    optimizer = torch.optim.AdamW(fsdp.parameters())
    x = batch(context.device)
    for step in range(4):
        torch.cuda.set_sync_debug_mode("error" if step else "default")
        fsdp(x.float()).square().mean().backward()
        fsdp.finish_gradient_synchronization()
        optimizer.step()
        optimizer.zero_grad()
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compute_dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("rule", RULES)
def test_the_host_does_not_wait_for_the_gpu_in_a_step(rule, compute_dtype):
    run_ranks(never_waits, WORLD_SIZE, backend="nccl", device_type="cuda", args=(rule, compute_dtype))


WIDTH, PAIRS = 2048, 6


def bytes_of_a_step(context, compute_dtype):
    fsdp = FSDP(make_net(context.device, WIDTH, PAIRS, dtype=torch.float32), compute_dtype, RULES["pairs"])
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
def test_kept_bytes_are_those_of_the_formula_and_the_peak_is_within_2_percent(compute_dtype):
    sizes = [4 * WIDTH**2, 4 * WIDTH, 4 * WIDTH**2, WIDTH]
    itemsize = 4 if compute_dtype is None else compute_dtype.itemsize
    plan = FsdpPlan((flat_layout(sizes, WORLD_SIZE),) * PAIRS, 0, 4, itemsize)
    wanted = plan.gathered_bytes + plan.collecting_bytes
    for kept, peak in run_ranks(bytes_of_a_step, WORLD_SIZE, backend="nccl", device_type="cuda", args=(compute_dtype,)):
        assert kept == plan.persistent_bytes
        assert peak == pytest.approx(wanted, rel=0.02)
