"""Properties that all four ways of data-parallel training share, shown by real processes."""

import gc
from functools import partial

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.parallel import BucketedDDP, FlatDDP, NaiveDDP, OverlapDDP

from .freed import still_there

WORLD_SIZES = (1, 2, 3)
ROWS = 12
SMALL_MB = 300 / 1024**2  # a few buckets for the nets below


def make_ddp(name):
    return {
        "naive": NaiveDDP,
        "flat": FlatDDP,
        "overlap": OverlapDDP,
        "bucketed": partial(BucketedDDP, bucket_size_mb=SMALL_MB),
    }[name]


NAMES = ("naive", "flat", "overlap", "bucketed")


class Net(nn.Module):
    """Linear layers with a tied weight, a frozen one, a buffer, and branches to use or leave out; in fp64."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(4, 6)
        self.second = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.second.weight
        self.frozen = nn.Linear(6, 6, bias=False).requires_grad_(False)
        self.branches = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(2))
        self.last = nn.Linear(6, 1)
        self.register_buffer("offset", torch.randn(6))
        self.register_buffer("count", torch.tensor(seed, dtype=torch.int16))
        self.double()

    def forward(self, x, branches=()):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.tied(torch.tanh(self.second(x)))) + self.offset
        x = self.frozen(x)
        for branch in branches:
            x = x + self.branches[branch](x)
        return self.last(x)


def data(step=0):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, 4, dtype=torch.float64, generator=generator)


def loss(output):
    return (output.square() + output).mean()


def share(context, batch):
    return batch.chunk(context.world_size)[context.rank]


def gradients(module):
    return {name: parameter.grad for name, parameter in module.named_parameters()}


def assert_same(actual, wanted):
    assert actual.keys() == wanted.keys()
    assert {name for name in actual if actual[name] is None} == {name for name in wanted if wanted[name] is None}
    torch.testing.assert_close(
        {name: tensor for name, tensor in actual.items() if tensor is not None},
        {name: tensor for name, tensor in wanted.items() if tensor is not None},
        rtol=1e-9,
        atol=1e-12,
    )


def reference_gradients(batch, branches=()):
    net = Net(seed=0)
    loss(net(batch, branches)).backward()
    return gradients(net)


every_way = pytest.mark.parametrize("name", NAMES)
every_world_size = pytest.mark.parametrize("world_size", WORLD_SIZES)


def assert_equal_at_every_step(context, name):
    alone, net = Net(seed=0), Net(seed=context.rank)
    ddp = make_ddp(name)(net)
    optimizers = [torch.optim.AdamW(module.parameters(), lr=0.05) for module in (alone, ddp)]
    for step in range(6):
        branches = [(), (0,), (0, 1)][step % 3]
        loss(alone(data(step), branches)).backward()
        loss(ddp(share(context, data(step)), branches=branches)).backward()
        ddp.finish_gradient_synchronization()
        assert_same(gradients(net), gradients(alone))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        assert_same(net.state_dict(), alone.state_dict())


@every_way
@every_world_size
def test_training_equals_one_process_with_the_full_batch_at_every_step(on_ranks, world_size, name):
    on_ranks(assert_equal_at_every_step, world_size, name)


def assert_starts_from_rank_0(context, name):
    net = Net(seed=10 + context.rank)
    ddp = make_ddp(name)(net)
    assert ddp.module is net
    assert_same(net.state_dict(), Net(seed=10).state_dict())


@every_way
def test_parameters_and_buffers_are_those_of_rank_0(on_ranks, name):
    on_ranks(assert_starts_from_rank_0, 3, name)


def assert_frozen_stays(context, name):
    net = Net(seed=0)
    ddp = make_ddp(name)(net)
    before = net.frozen.weight.clone()
    loss(ddp(share(context, data()))).backward()
    ddp.finish_gradient_synchronization()
    assert net.frozen.weight.grad is None
    assert torch.equal(net.frozen.weight, before)


@every_way
def test_a_frozen_parameter_gets_no_gradient(on_ranks, name):
    on_ranks(assert_frozen_stays, 2, name)


def assert_unused_counts_as_zeros(context, name):
    net = Net(seed=0)
    ddp = make_ddp(name)(net)
    for using in range(context.world_size):
        branches = (1,) if context.rank == using else ()
        loss(ddp(share(context, data()), branches)).backward()
        ddp.finish_gradient_synchronization()
        alone = Net(seed=0)
        parts = data().chunk(context.world_size)
        losses = [loss(alone(part, (1,) if rank == using else ())) for rank, part in enumerate(parts)]
        torch.stack(losses).mean().backward()
        assert_same(gradients(net), gradients(alone))
        assert net.branches[0].weight.grad is None
        net.zero_grad()


@every_way
def test_a_parameter_unused_on_some_ranks_counts_as_zeros_there_and_one_unused_on_all_keeps_none(on_ranks, name):
    on_ranks(assert_unused_counts_as_zeros, 3, name)


def assert_accumulated(context, name):
    net = Net(seed=0)
    ddp = make_ddp(name)(net)
    for _ in range(2):
        parts = share(context, data()).chunk(2)
        with ddp.no_sync():
            loss(ddp(parts[0], (0,))).backward()
        alone = Net(seed=0)
        loss(alone(parts[0], (0,))).backward()
        assert_same(gradients(net), gradients(alone))  # each rank's own
        loss(ddp(parts[1], ())).backward()
        ddp.finish_gradient_synchronization()

        alone.zero_grad()
        for rank_part in data().chunk(context.world_size):
            for part, branches in zip(rank_part.chunk(2), [(0,), ()], strict=True):
                (loss(alone(part, branches)) / context.world_size).backward()
        assert_same(gradients(net), gradients(alone))
        net.zero_grad(set_to_none=False)


@every_way
def test_gradients_of_passes_inside_no_sync_are_summed_and_averaged_by_the_next_pass_outside(on_ranks, name):
    on_ranks(assert_accumulated, 2, name)


def assert_finishing_inside_no_sync_is_refused(context, name):
    ddp = make_ddp(name)(Net(seed=0))
    with ddp.no_sync():
        with ddp.no_sync():
            loss(ddp(data())).backward()
        with pytest.raises(RuntimeError, match="inside no_sync"):
            ddp.finish_gradient_synchronization()
    ddp.finish_gradient_synchronization()


@every_way
def test_finishing_inside_no_sync_is_an_error(on_ranks, name):
    on_ranks(assert_finishing_inside_no_sync_is_refused, 1, name)


def assert_averaged_without_hooks(context, name):
    net = Net(seed=0)
    ddp = make_ddp(name)(net)
    ddp.remove_hooks()
    assert all(not parameter._post_accumulate_grad_hooks for parameter in net.parameters())
    part = share(context, data())
    loss(ddp(part)).backward()
    alone = Net(seed=0)
    loss(alone(part)).backward()
    assert_same(gradients(net), gradients(alone))  # each rank's own
    ddp.finish_gradient_synchronization()
    assert_same(gradients(net), reference_gradients(data()))


@every_way
def test_without_its_hooks_the_finish_does_all_the_averaging(on_ranks, name):
    on_ranks(assert_averaged_without_hooks, 2, name)


class Mixed(nn.Module):
    """Layers of three dtypes, in turns."""

    DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.bfloat16, torch.float32)

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(4, 4, dtype=dtype) for dtype in self.DTYPES)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x.to(layer.weight.dtype))
        return x


def assert_dtypes_are_kept(context, name):
    net = Mixed(seed=context.rank)
    ddp = make_ddp(name)(net)
    loss(ddp(share(context, data()))).backward()
    ddp.finish_gradient_synchronization()
    by_rank = []
    for part in data().chunk(context.world_size):
        alone = Mixed(seed=0)
        loss(alone(part)).backward()
        by_rank.append(gradients(alone))
    for key, gradient in gradients(net).items():
        assert gradient.dtype == dict(net.named_parameters())[key].dtype
        mean = torch.stack([entry[key].double() for entry in by_rank]).mean(0)
        torch.testing.assert_close(gradient.double(), mean, rtol=2e-2, atol=1e-3)


@every_way
def test_parameters_of_different_dtypes_each_keep_theirs(on_ranks, name):
    on_ranks(assert_dtypes_are_kept, 2, name)


def fp16_mean_of_large_gradients(context, name):
    net = nn.Linear(1, 1, bias=False, dtype=torch.float16)
    ddp = make_ddp(name)(net)
    ddp(torch.full((1, 1), 40000.0, dtype=torch.float16)).sum().backward()
    ddp.finish_gradient_synchronization()
    return net.weight.grad.item()


@every_way
def test_fp16_gradients_whose_sum_would_overflow_are_averaged(on_ranks, name):
    assert on_ranks(fp16_mean_of_large_gradients, 2, name) == [40000.0, 40000.0]


def assert_averaged_in_any_layout(context, name):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 1)).double()
        return net.to(memory_format=torch.channels_last)

    def pictures(rank):
        return torch.randn(2, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))

    net, alone = build(), build()
    ddp = make_ddp(name)(net)
    # A rank that uses nothing has no gradient whose layout could guide it.
    if context.rank == 1:
        ddp(pictures(1)).mean().backward()
    ddp.finish_gradient_synchronization()
    (alone(pictures(1)).mean() / context.world_size).backward()
    assert_same(gradients(net), gradients(alone))


@every_way
def test_parameters_that_are_not_contiguous_are_averaged_element_by_element(on_ranks, name):
    on_ranks(assert_averaged_in_any_layout, 2, name)


def assert_nothing_to_train_is_refused(context, name):
    with pytest.raises(ValueError, match="no parameter of the module requires a gradient"):
        make_ddp(name)(nn.Linear(2, 2).requires_grad_(False))


@every_way
def test_a_module_with_nothing_to_train_is_an_error(on_ranks, name):
    on_ranks(assert_nothing_to_train_is_refused, 1, name)


def kept_storages(context, name):
    net = Net(seed=0)
    ddp = make_ddp(name)(net)
    optimizer = torch.optim.AdamW(ddp.parameters())
    for _ in range(2):
        loss(ddp(share(context, data()), branches=(0,))).backward()
        ddp.finish_gradient_synchronization()
        optimizer.step()
    tensors = [*ddp.parameters(), *(parameter.grad for parameter in ddp.parameters() if parameter.grad is not None)]
    storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in tensors]
    del net, ddp, optimizer, tensors
    gc.collect()
    return still_there(storages)


@every_way
def test_dropping_module_and_optimizer_frees_parameters_and_gradients(on_ranks, name):
    assert on_ranks(kept_storages, 2, name) == [0, 0]


def assert_averaged_after_another(context, name):
    net = Net(seed=0)
    former = make_ddp(name)(net)
    del former
    ddp = make_ddp(name)(net)
    for _ in range(2):
        loss(ddp(share(context, data()))).backward()
        ddp.finish_gradient_synchronization()
        assert_same(gradients(net), reference_gradients(data()))
        net.zero_grad()


@every_way
def test_a_module_whose_wrapper_is_gone_can_be_wrapped_again(on_ranks, name):
    on_ranks(assert_averaged_after_another, 2, name)
