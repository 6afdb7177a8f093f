from functools import partial

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

from ..ranks import on_ranks
from .modules import Lookup
from .ways import every_way, synchronize

LARGE_BYTES = 2**20


@on_ranks(2)
@every_way(LARGE_BYTES)
def test_a_gradient_that_cannot_be_averaged_or_a_finish_inside_no_sync_is_an_error(context, way):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    net[0].weight.requires_grad_(False)
    ddp = way(net)
    net[0].weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"^0\.weight was frozen when the module was wrapped"):
        synchronize(ddp, ddp(torch.ones(2, 3)).sum())
    net[0].weight.grad = None
    ddp.finish_gradient_synchronization()
    with ddp.no_sync():
        with ddp.no_sync():
            ddp(torch.ones(2, 3)).sum().backward()
        with pytest.raises(RuntimeError, match="inside no_sync"):
            ddp.finish_gradient_synchronization()
    ddp.discard_gradients()
    ddp = way(nn.Sequential(Lookup()))
    with pytest.raises(RuntimeError, match=r"^0\.table: a sparse gradient cannot be averaged$"):
        synchronize(ddp, ddp(torch.tensor([0, 2])).sum())


@on_ranks(2)
def test_untrainable_uninitialised_and_sparse_modules_are_refused_at_once(context):
    with pytest.raises(ValueError, match="no parameter of the module requires a gradient"):
        NaiveDDP(nn.Linear(2, 2).requires_grad_(False))
    with pytest.raises(ValueError, match=r"^1\.weight is not initialised: run the module once before wrapping it$"):
        NaiveDDP(nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)))
    for embedding in (nn.Embedding(4, 2, sparse=True), nn.EmbeddingBag(4, 2, mode="sum", sparse=True)):
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(embedding))
        with pytest.raises(ValueError, match=r"^1\.0\.weight: sparse gradients \(sparse=True\) cannot be averaged$"):
            NaiveDDP(net)
        embedding.requires_grad_(False)
        NaiveDDP(net)
    with pytest.raises(ValueError, match=r"^parameters and buffers: rank 1 raised ValueError: 0\.weight: sparse"):
        NaiveDDP(nn.Sequential(nn.Embedding(4, 2, sparse=context.rank == 1)))


@on_ranks(2)
@every_way(LARGE_BYTES)
def test_a_module_converted_after_wrapping_is_averaged_unless_its_gradients_have_buffers(context, way):
    net = nn.Linear(3, 1)
    ddp = way(net).double()
    loss = ddp(torch.full((1, 3), 1.0 + context.rank, dtype=torch.float64)).sum()
    if isinstance(ddp, FlatDDP | BucketedDDP):
        with pytest.raises(RuntimeError, match=r"torch\.float64 on cpu, .* torch\.float32 on cpu: convert or move"):
            synchronize(ddp, loss)
    else:
        synchronize(ddp, loss)
        assert torch.equal(net.weight.grad, torch.full((1, 3), 1.5, dtype=torch.float64))


WAYS_THAT_DIFFER = {
    "rank 0 has 'NaiveDDP', rank 1 has 'OverlapDDP'": (NaiveDDP, OverlapDDP),
    "rank 0 has 'NaiveDDP', rank 1 has 'FlatDDP'": (NaiveDDP, FlatDDP),
    "rank 0 has 'all-reduce of 3 elements', rank 1 has 'all-reduce of 24 elements'": [
        partial(BucketedDDP, bucket_size_mb=size / 1024**2) for size in (40, LARGE_BYTES)
    ],
}


@on_ranks(2)
@pytest.mark.parametrize("difference", WAYS_THAT_DIFFER)
def test_ranks_that_would_reduce_different_pieces_raise_an_error_on_every_rank(context, difference):
    with pytest.raises(ValueError, match="ways to reduce differ between ranks") as caught:
        WAYS_THAT_DIFFER[difference][context.rank](nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    assert str(caught.value).endswith(difference)


# Part of every rank's error, and the module of each rank.
MODULES_THAT_DIFFER = {
    "rank 0 has 2, rank 1 has 4": lambda rank: nn.Sequential(*(nn.Linear(3, 3) for _ in range(1 + rank))),
    "shape (4, 3)": lambda rank: nn.Linear(3, 3 + rank // 2),
    "rank 2 has 'weight: torch.float64": lambda rank: nn.Linear(3, 3, dtype=[torch.float32, torch.float64][rank // 2]),
    "frozen": lambda rank: nn.Linear(3, 3).requires_grad_(rank < 2),
    "rank 2 raised ValueError: weight is not": lambda rank: nn.Linear(3, 3) if rank < 2 else nn.LazyLinear(3),
    "rank 0 has 5, rank 2 has 2": lambda rank: nn.BatchNorm1d(3, track_running_stats=rank < 2),
}


@on_ranks(3)
def test_modules_that_differ_raise_an_error_on_every_rank(context):
    for difference, make in MODULES_THAT_DIFFER.items():
        with pytest.raises(ValueError, match=r"differ between ranks|rank 2 raised ValueError") as caught:
            NaiveDDP(make(context.rank))
        assert difference in str(caught.value)
