"""The variants of data-parallel training, and helpers to compare them in tests."""

from functools import partial

import pytest
import torch

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

NAMES = ("naive", "flat", "overlap", "bucketed")
OVERLAPPING = ("overlap", "bucketed")


def every_way(bucket_bytes, names=NAMES):
    """Run a test with each of these ways, with buckets of this size, as its argument `way`."""
    bucketed = partial(BucketedDDP, bucket_size_mb=bucket_bytes / 1024**2)
    ways = {"naive": NaiveDDP, "flat": FlatDDP, "overlap": OverlapDDP, "bucketed": bucketed}
    return pytest.mark.parametrize("way", [ways[name] for name in names], ids=names)


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same(actual, wanted, rtol=1e-9, atol=1e-12):
    """Compare tensors by name; some may be None."""
    actual, wanted = ({name: _or_nothing(tensor) for name, tensor in each.items()} for each in (actual, wanted))
    torch.testing.assert_close(actual, wanted, rtol=rtol, atol=atol)


def _or_nothing(tensor):
    return torch.empty(0) if tensor is None else tensor


def synchronize(ddp, loss):
    loss.backward()
    ddp.finish_gradient_synchronization()


def step_all(optimizers, set_to_none=True):
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none)
