"""What none of the ways of data-parallel training can average is refused in one line."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

WAYS = {"naive": NaiveDDP, "flat": FlatDDP, "overlap": OverlapDDP, "bucketed": partial(BucketedDDP, bucket_size_mb=1)}

every_way = pytest.mark.parametrize("name", WAYS)


def assert_unfrozen_is_refused(context, name):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    net[0].weight.requires_grad_(False)
    ddp = WAYS[name](net)
    net[0].weight.requires_grad_(True)
    ddp(torch.ones(2, 3)).sum().backward()
    with pytest.raises(RuntimeError, match=r"^0\.weight was frozen when the module was wrapped"):
        ddp.finish_gradient_synchronization()
    net[0].weight.grad = None
    ddp.finish_gradient_synchronization()


@every_way
def test_a_gradient_of_a_parameter_that_was_frozen_when_wrapped_is_an_error(on_ranks, name):
    on_ranks(assert_unfrozen_is_refused, 2, name)


class Lookup(nn.Module):
    """An embedding as a function, of which nothing tells beforehand that its gradient will be sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, indices):
        return functional.embedding(indices, self.table, sparse=True)


def assert_sparse_gradient_is_refused(context, name):
    ddp = WAYS[name](nn.Sequential(Lookup()))
    with pytest.raises(RuntimeError, match=r"^0\.table: a sparse gradient cannot be averaged$"):  # noqa: PT012
        ddp(torch.tensor([0, 2])).sum().backward()
        ddp.finish_gradient_synchronization()


@every_way
def test_a_sparse_gradient_is_an_error_that_names_the_parameter(on_ranks, name):
    on_ranks(assert_sparse_gradient_is_refused, 2, name)


def assert_sparse_embedding_is_refused(context):
    for embedding in (nn.Embedding(4, 2, sparse=True), nn.EmbeddingBag(4, 2, mode="sum", sparse=True)):
        net = nn.Sequential(nn.Linear(2, 2), nn.Sequential(embedding))
        with pytest.raises(ValueError, match=r"^1\.0\.weight: sparse gradients \(sparse=True\) cannot be averaged$"):
            NaiveDDP(net)
        embedding.requires_grad_(False)
        NaiveDDP(net)
    with pytest.raises(ValueError, match=r"^parameters and buffers: rank 1 raised ValueError: 0\.weight: sparse"):
        NaiveDDP(nn.Sequential(nn.Embedding(4, 2, sparse=context.rank == 1)))


def test_a_sparse_embedding_is_refused_at_once_unless_it_is_frozen(on_ranks):
    on_ranks(assert_sparse_embedding_is_refused, 2)


def convert(context, name):
    net = nn.Linear(3, 1)
    ddp = WAYS[name](net).double()
    ddp(torch.full((1, 3), 1.0 + context.rank, dtype=torch.float64)).sum().backward()
    ddp.finish_gradient_synchronization()
    return net.weight.grad.dtype, net.weight.grad.tolist()


def assert_conversion_is_refused(context, name):
    with pytest.raises(RuntimeError, match=r"torch\.float64 on cpu, .* torch\.float32 on cpu: convert or move"):
        convert(context, name)


@pytest.mark.parametrize("name", ["flat", "bucketed"])
def test_a_module_converted_after_wrapping_is_an_error_where_its_gradients_have_buffers(on_ranks, name):
    on_ranks(assert_conversion_is_refused, 2, name)


@pytest.mark.parametrize("name", ["naive", "overlap"])
def test_a_module_converted_after_wrapping_is_averaged_where_its_gradients_have_none(on_ranks, name):
    assert on_ranks(convert, 2, name) == [(torch.float64, [[1.5, 1.5, 1.5]])] * 2


MISMATCHES = {
    "after and during": ("naive", "overlap"),
    "one by one and at once": ("naive", "flat"),
    "two sizes": (
        partial(BucketedDDP, bucket_size_mb=40 / 1024**2),
        partial(BucketedDDP, bucket_size_mb=1),
    ),
}


def mismatched(context, case):
    way = MISMATCHES[case][context.rank]
    with pytest.raises(ValueError, match="ways to reduce differ between ranks") as caught:
        WAYS.get(way, way)(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "difference"),
    [
        ("after and during", "rank 0 has 'NaiveDDP', rank 1 has 'OverlapDDP'"),
        ("one by one and at once", "rank 0 has 'NaiveDDP', rank 1 has 'FlatDDP'"),
        ("two sizes", "rank 0 has 'all-reduce of 3 elements', rank 1 has 'all-reduce of 24 elements'"),
    ],
)
def test_ranks_that_would_reduce_in_different_pieces_are_an_error_on_every_rank(on_ranks, case, difference):
    for message in on_ranks(mismatched, 2, case, timeout_s=15):
        assert message.endswith(difference)


def assert_uninitialised_is_refused(context, name):
    with pytest.raises(ValueError, match=r"^1\.weight is not initialised: run the module once before wrapping it$"):
        WAYS[name](nn.Sequential(nn.Linear(3, 3), nn.LazyLinear(3)))


@every_way
def test_a_lazy_module_that_has_not_run_is_an_error_that_names_the_parameter(on_ranks, name):
    on_ranks(assert_uninitialised_is_refused, 2, name)
