from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.instruments.memory.training_kinds import device_bytes, kinds_bytes
from pipeline.parallel import OverlapDDP, ShardedOptimizer
from pipeline.stages.sharding.prediction import Share, fullest_share, memory_bytes

from ...ranks import on_ranks

# Layers whose parameters cannot be divided evenly over ranks.
WIDTHS = (7, 50, 3, 11)


def counted(optimizer_class):
    """Return this rank's bytes by kind at the moments of two steps of an optimizer, and its parameters' bytes."""
    model = OverlapDDP(nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(WIDTHS))))
    extra = () if optimizer_class is torch.optim.AdamW else (torch.optim.AdamW,)
    optimizer = optimizer_class(model.parameters(), *extra)
    moments = {"initialised": kinds_bytes(model, optimizer)}
    for prefix in ("first_", ""):
        model(torch.randn(4, WIDTHS[0])).sum().backward()
        model.finish_gradient_synchronization()
        moments[f"{prefix}before_step"] = kinds_bytes(model, optimizer)
        optimizer.step()
        moments[f"{prefix}after_step"] = kinds_bytes(model, optimizer)
        optimizer.zero_grad(set_to_none=True)
    sizes = [parameter.nbytes for parameter in model.parameters()]
    return {(moment, kind): size for moment, kinds in moments.items() for kind, size in kinds.items()}, sizes


@on_ranks(1, 3)
@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, ShardedOptimizer, ZeroRedundancyOptimizer])
def test_the_fullest_rank_holds_exactly_what_is_predicted(context, optimizer):
    own, sizes = counted(optimizer)
    by_rank = [None] * context.world_size
    dist.all_gather_object(by_rank, own)
    shared = fullest_share(sizes, context.world_size)
    share = Share(len(sizes), sum(sizes)) if optimizer is torch.optim.AdamW else shared
    predicted = memory_bytes(sum(sizes), share, None)
    assert {key: max(rank[key] for rank in by_rank) for key in own} == {key: predicted[key] for key in own}


@pytest.mark.parametrize(("world_size", "share"), [(2, (2, 70)), (3, (1, 60)), (8, (1, 60))])
def test_shares_are_dealt_out_largest_first(world_size, share):
    assert fullest_share([10, 60, 30, 40], world_size) == Share(*share)


def test_gpu_predictions_exclude_step_counters_and_tensors_count_their_whole_storage():
    share = Share(1, 500)
    beside, on_gpu = (memory_bytes(1000, share, peaks) for peaks in (None, {"peak": 5000, "requested_peak": 4000}))
    assert beside["after_step", "optimizer_state"] == on_gpu["after_step", "optimizer_state"] + 4 == 1004
    assert ("before_step", "peak") not in beside
    assert [on_gpu["before_step", peak] for peak in ("peak", "requested_peak")] == [6000, 5000]
    # Parameters, gradients, two moments of a half, and a temporary of a half.
    assert on_gpu["first_after_step", "peak"] == on_gpu["after_step", "peak"] == 1000 + 1000 + 1000 + 500
    assert on_gpu["initialised", "peak"] == on_gpu["initialised", "allocated"] == 1000
    assert on_gpu["first_before_step", "requested"] == 2000
    assert ("first_before_step", "peak") not in on_gpu
    model = nn.Linear(4, 4, bias=False)
    model.weight.grad = torch.zeros(100)[:16].view(4, 4)
    kinds = kinds_bytes(model, torch.optim.SGD(model.parameters()))
    assert kinds == {"parameters": 64, "gradients": 400, "optimizer_state": 0}


@pytest.mark.gpu
def test_the_foreach_step_peaks_as_predicted():
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    total = sum(parameter.nbytes for parameter in model.parameters())
    model(torch.randn(1, 2048, device=device)).sum().backward()
    workspace = device_bytes(device)["requested"] - 2 * total  # of the matmul library
    for _ in range(2):
        model(torch.randn(1, 2048, device=device)).sum().backward()
        device_bytes(device)
        optimizer.step()
        peak = device_bytes(device)["requested_peak"]
        optimizer.zero_grad()
    predicted = memory_bytes(total, Share(8, total), {"peak": 1, "requested_peak": 1})["after_step", "requested_peak"]
    assert peak - workspace == pytest.approx(predicted, rel=0.03)
