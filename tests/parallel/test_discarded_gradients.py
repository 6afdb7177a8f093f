"""Training goes on after a backward pass that failed halfway, on some ranks or on all, at one place or at several."""

from functools import partial

import pytest
import torch
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

from .failing import Breaks

SMALL_MB = 150 / 1024**2  # some buckets are ready before the pass fails
WAYS = {
    "naive": NaiveDDP,
    "flat": FlatDDP,
    "overlap": OverlapDDP,
    "bucketed": partial(BucketedDDP, bucket_size_mb=SMALL_MB),
}


class MayBreak(nn.Module):
    """Four layers, of which the gradients of the last are there when a backward pass fails at a place."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))

    def forward(self, x, breaks_behind=None):
        for place, layer in enumerate(self.layers):
            x = layer(Breaks.apply(x) if place == breaks_behind else x)
        return x.sum()


def batch(rank):
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(rank))


def fail_on_some_ranks(ddp, context, breaks_behind):
    loss = ddp(batch(context.rank), breaks_behind[context.rank])
    if breaks_behind[context.rank] is None:
        loss.backward()
        return
    with pytest.raises(MemoryError, match="halfway"):
        loss.backward()


def assert_starts_over(context, name, breaks_behind):
    net, alone = MayBreak(), MayBreak()
    ddp = WAYS[name](net)
    for _ in range(2):
        fail_on_some_ranks(ddp, context, breaks_behind)
        ddp.discard_gradients()
        assert all(parameter.grad is None for parameter in net.parameters())
        ddp(batch(context.rank)).backward()
        ddp.finish_gradient_synchronization()
    for rank in range(context.world_size):
        (alone(batch(rank)) / context.world_size).backward()
    for parameter, wanted in zip(net.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad)


@pytest.mark.parametrize("breaks_behind", [(3, 3), (3, 1), (1, None)])
@pytest.mark.parametrize("name", WAYS)
def test_training_goes_on_after_a_failed_backward_pass_whose_gradients_are_discarded(on_ranks, name, breaks_behind):
    on_ranks(assert_starts_over, 2, name, breaks_behind)


def assert_told_how_to_start_over(context, name):
    ddp = WAYS[name](MayBreak())
    fail_on_some_ranks(ddp, context, (1, 1))
    ddp.zero_grad()
    with pytest.raises(RuntimeError, match=r"after a backward pass that failed, call discard_gradients\(\)"):
        ddp(batch(context.rank)).backward()
    ddp.discard_gradients()


@pytest.mark.parametrize("name", ["overlap", "bucketed"])
def test_the_step_after_a_failed_backward_pass_is_refused_with_the_way_to_start_over(on_ranks, name):
    on_ranks(assert_told_how_to_start_over, 2, name)
