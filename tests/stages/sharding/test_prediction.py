from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from pipeline.instruments.memory.training_kinds import device_bytes, kinds_bytes
from pipeline.parallel import OverlapDDP, ShardedOptimizer
from pipeline.parallel.processes.starting import run_ranks
from pipeline.stages.sharding import prediction

# Of sizes that no number of ranks shares out evenly.
WIDTHS = (7, 50, 3, 11)


def small_model():
    return nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(WIDTHS)))


def parameter_bytes():
    return [parameter.nbytes for parameter in small_model().parameters()]


def counted(context):
    """Count each optimizer's kinds on this rank at the moments of two steps."""
    optimizers = {"adamw": torch.optim.AdamW, "sharded": ShardedOptimizer, "torch_zero": ZeroRedundancyOptimizer}
    by_impl = {}
    for impl, optimizer_class in optimizers.items():
        model = OverlapDDP(small_model())
        extra = () if impl == "adamw" else (torch.optim.AdamW,)
        optimizer = optimizer_class(model.parameters(), *extra)
        moments = {"initialised": kinds_bytes(model, optimizer)}
        for prefix in ("first_", ""):
            model(torch.randn(4, WIDTHS[0])).sum().backward()
            model.finish_gradient_synchronization()
            moments[f"{prefix}before_step"] = kinds_bytes(model, optimizer)
            optimizer.step()
            moments[f"{prefix}after_step"] = kinds_bytes(model, optimizer)
            optimizer.zero_grad(set_to_none=True)
        by_impl[impl] = moments
    return by_impl


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_fullest_rank_holds_just_what_is_predicted(world_size):
    by_rank = run_ranks(counted, world_size, backend="gloo", timeout_s=60)
    for impl, moments in by_rank[0].items():
        sizes = parameter_bytes()
        share = prediction.whole(sizes) if impl == "adamw" else prediction.fullest_share(sizes, world_size)
        for moment in moments:
            predicted = prediction.kinds_bytes(sizes, share, moment, counters_on_device=True)
            fullest = {kind: max(rank[impl][moment][kind] for rank in by_rank) for kind in predicted}
            assert fullest == predicted, (impl, moment)


def test_shares_are_dealt_out_largest_first():
    assert prediction.fullest_share([10, 60, 30, 40], world_size=2) == prediction.Share(2, 70)
    assert prediction.fullest_share([10, 60, 30, 40], world_size=3) == prediction.Share(1, 60)


def test_more_ranks_than_tensors_leave_the_largest_tensor_as_the_fullest_share():
    assert prediction.fullest_share([10, 60, 30], world_size=8) == prediction.Share(1, 60)


def test_on_a_gpu_the_step_counters_are_elsewhere():
    share = prediction.whole([400, 800])
    on_device, beside = (
        prediction.kinds_bytes([400, 800], share, "after_step", counters_on_device=on_device)["optimizer_state"]
        for on_device in (True, False)
    )
    assert (on_device, beside) == (2408, 2400)


def test_the_peaks_of_known_figures():
    # Parameters, gradients, two moments of a half, and a temporary of a half.
    share = prediction.Share(1, 500)
    assert prediction.step_peak_bytes([500, 500], share) == 1000 + 1000 + 1000 + 500
    assert prediction.backward_peak_bytes(5000, share) == 6000


def test_storages_are_counted_once_and_as_a_whole():
    model = nn.Linear(4, 4, bias=False)
    flat = torch.zeros(100)
    model.weight.grad = flat[:16].view(4, 4)
    kinds = kinds_bytes(model, torch.optim.SGD(model.parameters()))
    assert kinds == {"parameters": 64, "gradients": 400, "optimizer_state": 0}


@pytest.mark.gpu
def test_the_foreach_step_peaks_as_predicted():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA GPU")
    device = torch.device("cuda")
    model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    sizes = [parameter.nbytes for parameter in model.parameters()]
    model(torch.randn(1, 2048, device=device)).sum().backward()
    workspace = device_bytes(device)["requested"] - 2 * sum(sizes)  # of the matrix product library
    for _ in range(2):
        model(torch.randn(1, 2048, device=device)).sum().backward()
        device_bytes(device)
        optimizer.step()
        peak = device_bytes(device)["requested_peak"]
        optimizer.zero_grad()
    assert peak - workspace == pytest.approx(prediction.step_peak_bytes(sizes, prediction.whole(sizes)), rel=0.03)
