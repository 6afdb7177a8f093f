import gc
import time
from itertools import pairwise
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.formulas.fsdp import FsdpPlan, flat_layout
from pipeline.parallel import FSDP

from ..ranks import on_ranks
from .freed import A_MOMENT_S
from .modules import Boxed, Lookup, Unboxing
from .refusals import refusal
from .ways import assert_same, step_all, synchronize

WIDTHS = (8, 24, 40, 16, 56, 32)


def stack(seed=0, dtype=torch.float32):
    """Build layers of different sizes, so that a buffer's length identifies its unit."""
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(first, second, dtype=dtype) for first, second in pairwise(WIDTHS)))


def train_step(fsdp):
    synchronize(fsdp, fsdp(torch.ones(2, WIDTHS[0])).square().sum())


@on_ranks(2)
def test_a_unit_is_gathered_while_the_one_before_it_computes_but_not_earlier(context):
    net, log = stack(), []
    unit_of = {layer.weight.numel(): index for index, layer in enumerate(net)}
    for index, layer in enumerate(net):
        layer.register_forward_hook(lambda *_, index=index: log.append(("forward", index)))
    original = dist.all_gather_into_tensor

    def logged(output, *args, **kwargs):
        log.append(("gather", unit_of[output.numel()]))
        return original(output, *args, **kwargs)

    with mock.patch.object(dist, "all_gather_into_tensor", logged):
        fsdp = FSDP(net)
        for layer in net:  # after the wrapper's hooks; a linear layer's input gradient is the last of its operations
            layer.register_full_backward_hook(lambda module, *_: log.append(("backward", list(net).index(module))))
        train_step(fsdp)
        log.clear()
        train_step(fsdp)
    last = len(WIDTHS) - 2
    # Forward in order; backward in reverse, except for the last two, which are still there.
    assert [unit for what, unit in log if what == "gather"] == [*range(last + 1), *range(last - 2, -1, -1)]
    middle = log.index(("forward", last))
    for position, (what, unit) in enumerate(log):
        if what == "gather":
            phase, step = ("forward", 1) if position < middle else ("backward", -1)
            before, after = log[:position], log[position:]
            assert (phase, unit - 2 * step) in before or unit - 2 * step not in range(last + 1)
            assert (phase, unit - step) in after or unit - step not in range(last + 1)


class EverySecond(nn.Module):
    """Layers of which only every second one is used, so that units of the same buffer follow each other."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))

    def forward(self, x):
        return self.layers[4](self.layers[2](self.layers[0](x).relu()).relu())


def wait_before_backward(layer, args, output):
    output.register_hook(lambda _: time.sleep(0.05))


@on_ranks(2)
def test_a_unit_is_not_gathered_ahead_into_the_buffer_in_use(context):
    """A layer's backward pass begins only when the unit gathered ahead has arrived."""
    outputs = []
    for wrap in (FSDP, nn.Module.train):
        net = EverySecond()
        model = wrap(net)
        for layer in net.layers:
            layer.register_forward_hook(wait_before_backward)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        outputs.append([])
        for _ in range(4):
            outputs[-1].append(model(torch.ones(2, 8)))
            outputs[-1][-1].square().sum().backward()
            if wrap is FSDP:
                model.finish_gradient_synchronization()
            step_all([optimizer])
    torch.testing.assert_close(*outputs)


def bytes_of_all_tensors():
    gc.collect()
    storages = [each.untyped_storage() for each in gc.get_objects() if type(each) in (torch.Tensor, nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def assert_bytes_soon(wanted):
    deadline = time.monotonic() + A_MOMENT_S  # a gloo thread may hold the tensor of its last collective
    while bytes_of_all_tensors() != wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bytes_of_all_tensors() == wanted


@on_ranks(2, 3)
@pytest.mark.parametrize(("whole", "compute_dtype"), [(False, None), (True, torch.bfloat16)])
def test_between_steps_a_rank_keeps_the_bytes_of_the_formula(context, whole, compute_dtype):
    sizes = [size for layer in stack() for size in (layer.weight.numel(), layer.bias.numel())]
    units, replicated = ((sizes,), 0) if whole else (tuple([size] for size in sizes[::2]), sum(sizes[1::2]))
    plan = FsdpPlan(tuple(flat_layout(unit, context.world_size) for unit in units), replicated, 4, 4)
    # The gradients of replicated parameters stay in a buffer.
    wanted = plan.persistent_bytes + 4 * plan.replicated
    gc.collect()
    gc.freeze()  # earlier objects are neither scanned nor counted
    fsdp = FSDP(stack(), compute_dtype=compute_dtype, shard=(lambda module: True) if whole else None)
    assert_bytes_soon(wanted)
    for _ in range(2):
        train_step(fsdp)
        fsdp.zero_grad()
    assert_bytes_soon(wanted)


@on_ranks(2)
def test_the_full_state_equals_the_modules_and_can_be_loaded(context):
    net, other = stack(seed=context.rank, dtype=torch.float64), stack(seed=7, dtype=torch.float64)
    fsdp = FSDP(net)
    assert_same(fsdp.full_state_dict(), stack(dtype=torch.float64).state_dict(), rtol=0, atol=0)
    assert {value.device.type for value in fsdp.full_state_dict(device="meta").values()} == {"meta"}
    x = torch.ones(2, WIDTHS[0], dtype=torch.float64)
    with torch.no_grad():
        fsdp(x)
        fsdp.load_full_state_dict(other.state_dict())
        torch.testing.assert_close(fsdp(x), other(x))
    state = fsdp.full_state_dict()
    assert_same(state, other.state_dict(), rtol=0, atol=0)
    said = refusal(ValueError, fsdp.load_full_state_dict, state | {"0.weight": torch.ones(2, 2)})
    assert said == "0.weight: must have shape (24, 8), got (2, 2)"
    state["more"] = state.pop("0.bias")
    said = refusal(ValueError, fsdp.load_full_state_dict, state)
    assert said == "the state to load lacks ['0.bias'], and has in excess ['more']"


class Choosing(nn.Module):
    """A unit with one weight used on some ranks only, another one never used, and parameters of two dtypes."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(4, 3).double()
        self.sometimes, self.never = (nn.Parameter(torch.ones(3, dtype=torch.float64)) for _ in range(2))
        self.single = nn.Parameter(torch.full((5,), 0.5))
        self.fixed = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x, use):
        y = self.always(x) * self.single.sum() * self.fixed
        return y * self.sometimes if use else y


@on_ranks(2, 3)
def test_units_may_mix_dtypes_and_have_frozen_unused_and_partly_used_parameters(context):
    fsdp, alone = FSDP(Choosing(), shard=lambda module: isinstance(module, Choosing)), Choosing()
    batches = torch.arange(24, dtype=torch.float64).reshape(-1, 4).chunk(context.world_size)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01, weight_decay=0.1) for module in (alone, fsdp)]
    for _ in range(2):
        synchronize(fsdp, fsdp(batches[context.rank], use=context.rank == 0).mean())
        losses = [alone(batch, use=rank == 0).mean() for rank, batch in enumerate(batches)]
        (sum(losses) / context.world_size).backward()
        step_all(optimizers)
        torch.testing.assert_close(fsdp.full_state_dict(), dict(alone.state_dict()))


class Outer(nn.Module):
    """A layer that calls another one that is not its submodule."""

    def __init__(self, inner):
        super().__init__()
        self.weight, self.inner = nn.Parameter(torch.ones(4, 4)), [inner]

    def forward(self, x):
        return self.inner[0](x) @ self.weight


@on_ranks(2)
def test_modules_that_cannot_be_sharded_or_differ_between_ranks_are_refused_in_one_line(context):
    shared, chosen = nn.Module(), nn.Linear(3, 3)
    shared.layer, shared.also = chosen, chosen.weight
    for module, said in (
        (nn.LayerNorm(3), "nothing to shard: no module has a 2-D weight"),
        (nn.Embedding(4, 2, sparse=True), "weight: sparse gradients (sparse=True) cannot be averaged"),
        (nn.LazyLinear(3), "weight is not initialised: run the module once before wrapping it"),
        (shared, "also is also a weight of a module that is sharded"),
    ):
        assert refusal(ValueError, FSDP, module).startswith(said)
    with pytest.raises(ValueError, match=r"^nothing to shard: shard is true for no module with parameters$"):
        FSDP(nn.Linear(3, 3), shard=lambda module: False)
    assert "cannot be copied or pickled" in refusal(TypeError, torch.save, FSDP(nn.Linear(3, 3)), "/dev/null")
    with pytest.raises(ValueError, match=r"^modules differ between ranks: rank 0 has .* rank 1 has "):
        FSDP(nn.Linear(3, 3 + context.rank))
    with pytest.raises(ValueError, match=r"^modules: rank 1 raised ValueError: nothing to shard"):
        FSDP(nn.Sequential(nn.Linear(3, 3)), shard=lambda module: context.rank == 0)


@on_ranks(2)
def test_uses_that_would_train_wrongly_are_refused_in_one_line(context):
    fsdp = FSDP(nn.Linear(3, 3))
    with fsdp.no_sync(), pytest.raises(RuntimeError, match="inside no_sync"):
        fsdp.finish_gradient_synchronization()
    fsdp.module.weight.requires_grad_(False)
    for changed in (fsdp, FSDP(nn.Linear(3, 3)).double()):
        with pytest.raises(RuntimeError, match=r"^weight was converted, moved, frozen or unfrozen after wrapping"):
            changed(torch.ones(1, 3))
    fsdp = FSDP(Lookup(), shard=lambda module: True)
    with pytest.raises(RuntimeError, match=r"^table: a sparse gradient cannot be averaged$"):
        synchronize(fsdp, fsdp(torch.tensor([0, 2])).sum())
    fsdp = FSDP(Unboxing(SimpleNamespace, 4), shard=lambda module: isinstance(module, Boxed))
    with pytest.raises(RuntimeError, match=r"^the gradient of layers\.\d\.layer\.\w+ was computed without its unit"):
        synchronize(fsdp, fsdp(torch.ones(2, 4)).sum())
    layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
    layers.append(Outer(layers[0]))
    fsdp = FSDP(layers)
    with pytest.raises(RuntimeError, match=r"^the unit of 0\.weight is used during the forward pass of that of 2\."):
        layers[2](torch.ones(1, 4))
