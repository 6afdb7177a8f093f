import time
from contextlib import contextmanager
from threading import Event, Thread
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

from ..ranks import on_ranks
from .ways import OVERLAPPING, assert_same, every_way, gradients, synchronize

LAYERS = 6
WIDTH = 8
LAYER_BYTES = 4 * WIDTH * WIDTH
TWO_LAYERS = 2 * LAYER_BYTES
# How many collectives there are, and how many of them start during the backward pass.
COLLECTIVES = {NaiveDDP: LAYERS, FlatDDP: 1, OverlapDDP: LAYERS, BucketedDDP: LAYERS // 2}
DURING_BACKWARD = {**COLLECTIVES, NaiveDDP: 0, FlatDDP: 0}


def layers(count=LAYERS):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))


def loss(ddp, context):
    return ddp(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(context.rank))).sum()


@contextmanager
def all_reduces_recorded():
    """Record the tensors of all-reduces: gradients and, separately, the maps that tell which gradients exist."""
    real, of_gradients, of_maps = dist.all_reduce, [], []

    def all_reduce(tensor, *args, **kwargs):
        (of_gradients if tensor.is_floating_point() else of_maps).append(tensor)
        return real(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", all_reduce):
        yield of_gradients, of_maps


@on_ranks(2)
@every_way(TWO_LAYERS)
def test_there_is_one_collective_per_trained_parameter_dtype_or_bucket(context, way):
    net = layers(LAYERS + 2)
    net[-1].weight = net[0].weight
    net[1].requires_grad_(False)
    ddp = way(net)
    count = COLLECTIVES[type(ddp)]
    for _ in range(3):
        with all_reduces_recorded() as (sent, maps):
            with ddp.no_sync():
                loss(ddp, context).backward()
            assert sent == maps == []
            loss(ddp, context).backward()
            assert len(sent) == DURING_BACKWARD[type(ddp)]
            ddp.finish_gradient_synchronization()
        assert [tensor.nbytes for tensor in sent] == [LAYERS * LAYER_BYTES // count] * count
        assert [tensor.nbytes for tensor in maps] == [LAYERS]
        ddp.zero_grad()


PATIENCE_S = 15  # for what should happen within milliseconds


class Link:
    """A network that carries all-reduces one at a time in the background, and none while it is closed."""

    def __init__(self, is_open):
        self._real, self._last, self._open = dist.all_reduce, None, Event()
        self.carried = 0
        if is_open:
            self.open()

    def open(self):
        self._open.set()

    def all_reduce(self, tensor, *args, async_op=False):
        if not tensor.is_floating_point():
            return self._real(tensor, *args, async_op=async_op)

        def carry(before=self._last):
            if before is not None:
                before.join()
            self._open.wait(PATIENCE_S)
            self._real(tensor, *args)
            self.carried += 1

        self._last = Thread(target=carry)
        self._last.start()
        if not async_op:
            self._last.join()
        return mock.Mock(wait=self._last.join)


def assert_averaged(context, ddp):
    naive = NaiveDDP(layers())
    synchronize(naive, loss(naive, context))
    assert_same(gradients(ddp), gradients(naive), rtol=1e-5, atol=1e-6)


@on_ranks(2)
@every_way(TWO_LAYERS, OVERLAPPING)
def test_gradients_are_carried_while_earlier_layers_still_have_to_go_backward(context, way):
    """If backward passes are slow enough, only the last layer's or bucket's collective is left at the end."""
    link, carried = Link(is_open=True), []

    def wait_for_what_is_complete():
        complete = len(carried) // (LAYERS // COLLECTIVES[type(ddp)])
        deadline = time.monotonic() + PATIENCE_S
        while link.carried < complete and time.monotonic() < deadline:
            time.sleep(0.001)
        carried.append(link.carried)

    net = layers()
    for layer in net:
        layer.register_full_backward_pre_hook(lambda *_: wait_for_what_is_complete())
    ddp = way(net)
    with mock.patch.object(dist, "all_reduce", link.all_reduce):
        synchronize(ddp, loss(ddp, context))
    assert carried == {OverlapDDP: [0, 1, 2, 3, 4, 5], BucketedDDP: [0, 0, 1, 1, 2, 2]}[type(ddp)]
    assert_averaged(context, ddp)


@on_ranks(2)
@every_way(TWO_LAYERS, OVERLAPPING)
def test_backward_waits_for_no_collective_and_finish_for_all(context, way):
    link, ddp = Link(is_open=False), way(layers())
    with mock.patch.object(dist, "all_reduce", link.all_reduce):
        loss(ddp, context).backward()
        assert link.carried == 0
        link.open()
        ddp.finish_gradient_synchronization()
        assert link.carried == COLLECTIVES[type(ddp)]
    assert_averaged(context, ddp)
