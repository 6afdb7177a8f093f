"""Parameters that do not lie in memory row by row, or not without gaps."""

import io
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter
from torch.optim import SGD, AdamW

from pipeline.parallel import ShardedOptimizer


def values(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


# Of each kind two, so that each of two ranks has to receive some.
DENSE = {
    "transposed": lambda: values(3, 4).t(),
    "one column": lambda: values(1, 4).t(),
    "permuted": lambda: values(2, 3, 4).permute(1, 2, 0),
    "3×3 convolution": lambda: nn.Conv2d(4, 3, 3).to(memory_format=torch.channels_last).weight.detach().fill_(1.0),
    "1×1 convolution": lambda: nn.Conv2d(4, 8, 1).to(memory_format=torch.channels_last).weight.detach().fill_(1.0),
    "one element": lambda: values(3, 2)[:1, 0],
    "no elements": lambda: values(3, 0).t(),
    "no dimension": lambda: torch.tensor(1.0),
}
WITH_GAPS = {"every other column": lambda: values(4, 4)[:, ::2], "part of a transposed": lambda: values(4, 4).t()[:3]}


def make_parameters():
    return [Parameter(make()) for make in (DENSE | WITH_GAPS).values() for _ in range(2)]


def step(parameters, optimizer):
    for parameter in parameters:
        parameter.grad = values(*parameter.shape) + 1
    optimizer.step()


@contextmanager
def broadcasts_recorded():
    real, sent = dist.broadcast, []

    def broadcast(tensor, src, **kwargs):
        sent.append(tensor)
        return real(tensor, src=src, **kwargs)

    with mock.patch.object(dist, "broadcast", broadcast):
        yield sent


def assert_updated_everywhere(context):
    shared, alone = make_parameters(), make_parameters()
    sharded, plain = ShardedOptimizer(shared, SGD, lr=0.5), SGD(alone, lr=0.5)
    for _ in range(2):
        with broadcasts_recorded() as sent:
            step(shared, sharded)
        step(alone, plain)
        torch.testing.assert_close(shared, alone, rtol=0, atol=0, check_stride=True)
    assert all(tensor.is_contiguous() for tensor in sent)  # NCCL takes no other
    copied = {tensor.data_ptr() for tensor in sent} - {parameter.data_ptr() for parameter in shared}
    assert len(copied) <= 2 * len(WITH_GAPS)


def test_every_layout_is_updated_on_every_rank_and_only_what_has_gaps_is_copied(on_ranks):
    on_ranks(assert_updated_everywhere, 2)


def assert_saved_and_restored(context, arguments):
    shared, alone = make_parameters(), make_parameters()
    sharded, plain = ShardedOptimizer(shared, AdamW, **arguments), AdamW(alone, **arguments)
    step(shared, sharded)
    step(alone, plain)
    saved = sharded.state_dict()
    torch.testing.assert_close(saved["state"], plain.state_dict()["state"], rtol=0, atol=0, check_stride=True)
    restored = AdamW(shared, **arguments)
    restored.load_state_dict(torch.load(save(saved)))
    step(shared, restored)
    step(alone, plain)
    torch.testing.assert_close(shared, alone, rtol=0, atol=0)


def save(state_dict):
    stream = io.BytesIO()
    torch.save(state_dict, stream)
    stream.seek(0)
    return stream


def test_the_state_of_every_layout_is_saved_as_the_plain_optimizer_has_it(on_ranks):
    on_ranks(assert_saved_and_restored, 2, {"foreach": True}, timeout_s=15)
