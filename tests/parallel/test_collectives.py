"""How many collectives each way of data-parallel training makes, of how many bytes, and when."""

import time
from contextlib import contextmanager
from functools import partial
from threading import Event, Thread
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

LAYERS = 6
WIDTH = 8
LAYER_BYTES = 4 * WIDTH * WIDTH
TWO_LAYERS_MB = 2 * LAYER_BYTES / 1024**2
COLLECTIVES = {"naive": LAYERS, "flat": 1, "overlap": LAYERS, "bucketed": LAYERS // 2}


def make_ddp(name, net):
    make = {
        "naive": NaiveDDP,
        "flat": FlatDDP,
        "overlap": OverlapDDP,
        "bucketed": partial(BucketedDDP, bucket_size_mb=TWO_LAYERS_MB),
    }
    return make[name](net)


every_way = pytest.mark.parametrize("name", COLLECTIVES)


def layers(count=LAYERS):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(count)))


def part(context):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(context.rank))


@contextmanager
def gradients_recorded():
    """Note each all-reduce of gradients: its bytes, and a copy of what this rank gave; apart from these, the maps."""
    real, gradients, maps = dist.all_reduce, [], []

    def all_reduce(tensor, *args, **kwargs):
        (gradients if tensor.is_floating_point() else maps).append((tensor.nbytes, tensor.clone()))
        return real(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", all_reduce):
        yield gradients, maps


def bytes_by_collective(context, name):
    ddp = make_ddp(name, layers())
    counted = []
    for _ in range(3):
        with gradients_recorded() as (gradients, maps):
            ddp(part(context)).sum().backward()
            ddp.finish_gradient_synchronization()
        counted.append([nbytes for nbytes, _ in gradients])
        assert [nbytes for nbytes, _ in maps] == [LAYERS]
        ddp.zero_grad()
    return counted


@every_way
def test_collectives_are_one_a_parameter_or_one_a_dtype_or_one_a_bucket(on_ranks, name):
    expected = [LAYERS * LAYER_BYTES // COLLECTIVES[name]] * COLLECTIVES[name]
    assert on_ranks(bytes_by_collective, 2, name) == [[expected] * 3] * 2


def bytes_of_tied(context, name):
    net = layers()
    net[-1].weight = net[0].weight
    ddp = make_ddp(name, net)
    with gradients_recorded() as (gradients, _):
        ddp(part(context)).sum().backward()
        ddp.finish_gradient_synchronization()
    return sum(nbytes for nbytes, _ in gradients)


@every_way
def test_tied_weights_are_reduced_once(on_ranks, name):
    assert on_ranks(bytes_of_tied, 2, name) == [(LAYERS - 1) * LAYER_BYTES] * 2


def bytes_of_frozen(context, name):
    net = layers()
    net[1].requires_grad_(False)
    net[2].requires_grad_(False)
    ddp = make_ddp(name, net)
    with gradients_recorded() as (gradients, _):
        ddp(part(context)).sum().backward()
        ddp.finish_gradient_synchronization()
    return sum(nbytes for nbytes, _ in gradients)


@every_way
def test_frozen_parameters_are_not_sent(on_ranks, name):
    assert on_ranks(bytes_of_frozen, 2, name) == [(LAYERS - 2) * LAYER_BYTES] * 2


def dtypes_by_collective(context, name):
    net = nn.Sequential(*(nn.Linear(4, 4, bias=False, dtype=dtype) for dtype in [torch.float32, torch.bfloat16] * 3))
    ddp = make_ddp(name, net)
    with gradients_recorded() as (gradients, _):
        x = torch.ones(1, 4)
        for layer in ddp.module:
            x = layer(x.to(layer.weight.dtype))
        x.sum().backward()
        ddp.finish_gradient_synchronization()
    return [(tensor.dtype, nbytes) for nbytes, tensor in gradients]


@every_way
def test_no_collective_mixes_dtypes(on_ranks, name):
    (dtypes,) = on_ranks(dtypes_by_collective, 1, name)
    one = {torch.float32: 64, torch.bfloat16: 32}
    if name in ("naive", "overlap"):
        assert dtypes == [(torch.bfloat16, 32), (torch.float32, 64)] * 3
    else:  # the buckets' limit of two layers in fp32 holds all three of a kind
        assert sorted(dtypes, key=str) == sorted([(dtype, 3 * nbytes) for dtype, nbytes in one.items()], key=str)


def silent_inside_no_sync(context, name):
    ddp = make_ddp(name, layers())
    with gradients_recorded() as (gradients, maps):
        with ddp.no_sync():
            ddp(part(context)).sum().backward()
        assert not gradients
        assert not maps
        ddp(part(context)).sum().backward()
        ddp.finish_gradient_synchronization()
    return len(gradients)


@every_way
def test_nothing_is_sent_inside_no_sync(on_ranks, name):
    assert on_ranks(silent_inside_no_sync, 2, name) == [COLLECTIVES[name]] * 2


def started_in_backward(context, name):
    net = layers()
    ddp = make_ddp(name, net)
    counts = []
    with gradients_recorded() as (gradients, _):
        for _ in range(2):
            loss = ddp(part(context)).sum()
            before = len(gradients)
            loss.backward()
            counts.append(len(gradients) - before)
            ddp.finish_gradient_synchronization()
        ddp.remove_hooks()
        before = len(gradients)
        ddp(part(context)).sum().backward()
        counts.append(len(gradients) - before)
        ddp.finish_gradient_synchronization()
    return counts


@pytest.mark.parametrize(("name", "started"), [("naive", 0), ("flat", 0), ("overlap", LAYERS), ("bucketed", 3)])
def test_collectives_start_during_the_backward_pass_where_they_should_overlap(on_ranks, name, started):
    assert on_ranks(started_in_backward, 2, name) == [[started, started, 0]] * 2


def bytes_of_growing_layers(context, name):
    net = nn.Sequential(*(nn.Linear(size, size + 1, bias=False) for size in (1, 2, 3)))
    ddp = NaiveDDP(net) if name == "naive" else OverlapDDP(net)
    with gradients_recorded() as (gradients, _):
        ddp(torch.ones(2, 1)).sum().backward()
        ddp.finish_gradient_synchronization()
    return [nbytes for nbytes, _ in gradients]


@pytest.mark.parametrize("name", ["naive", "overlap"])
def test_the_last_layers_come_first(on_ranks, name):
    assert on_ranks(bytes_of_growing_layers, 2, name) == [[48, 24, 8]] * 2


PATIENCE_S = 15  # for what should happen within milliseconds


class Link:
    """A network that carries one all-reduce after the other in the background, and none while it is closed."""

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


class Announced(torch.autograd.Function):
    """Do nothing; backward, call a function first."""

    @staticmethod
    def forward(context, x, announce):
        context.announce = announce
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        context.announce()
        return gradient, None


class AnnouncedLayers(nn.Module):
    """Layers that call a function before each of them goes backward."""

    def __init__(self, announce):
        super().__init__()
        self.layers, self.announce = layers(), announce

    def forward(self, x):
        for layer in self.layers:
            x = Announced.apply(layer(x), self.announce)
        return x


def synchronized(context, ddp, link, after_backward=lambda: None):
    with mock.patch.object(dist, "all_reduce", link.all_reduce):
        loss = ddp(part(context)).sum()
        loss.backward()
        after_backward()
        ddp.finish_gradient_synchronization()
    return [parameter.grad for parameter in ddp.parameters()]


def assert_averaged(context, gradients):
    naive = NaiveDDP(layers())
    naive(part(context)).sum().backward()
    naive.finish_gradient_synchronization()
    torch.testing.assert_close(gradients, [parameter.grad for parameter in naive.parameters()])


def carried_before_each_layer(context, name):
    link, carried = Link(is_open=True), []
    layers_a_collective = LAYERS // COLLECTIVES[name]

    def wait_for_what_is_complete():
        complete = len(carried) // layers_a_collective
        deadline = time.monotonic() + PATIENCE_S
        while link.carried < complete and time.monotonic() < deadline:
            time.sleep(0.001)
        carried.append(link.carried)

    ddp = make_ddp(name, AnnouncedLayers(wait_for_what_is_complete))
    assert_averaged(context, synchronized(context, ddp, link))
    return carried


@pytest.mark.parametrize(("name", "carried"), [("overlap", [0, 1, 2, 3, 4, 5]), ("bucketed", [0, 0, 1, 1, 2, 2])])
def test_gradients_are_carried_while_the_layers_before_are_still_to_go_backward(on_ranks, name, carried):
    """However slow backward passes are, only the last layer's collective, or the last bucket's, is left then."""
    assert on_ranks(carried_before_each_layer, 2, name) == [carried] * 2


def carried_at_the_end_of_backward(context, name):
    link, carried = Link(is_open=False), []

    def note_and_open():
        carried.append(link.carried)
        link.open()

    gradients = synchronized(context, make_ddp(name, layers()), link, note_and_open)
    assert_averaged(context, gradients)
    return [*carried, link.carried]


@pytest.mark.parametrize("name", ["overlap", "bucketed"])
def test_a_backward_pass_waits_for_no_collective_and_the_finish_for_all(on_ranks, name):
    assert on_ranks(carried_at_the_end_of_backward, 2, name) == [[0, COLLECTIVES[name]]] * 2
