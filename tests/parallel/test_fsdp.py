import copy
from functools import partial

import pytest
import torch

from pipeline.parallel import FSDP

from ..ranks import on_ranks
from .nets import Net, by_block, data, loss, share
from .ways import assert_same, step_all, synchronize

RULES = {"layers": None, "blocks": by_block, "whole": lambda module: isinstance(module, Net)}


def assert_equal_at_every_step(context, rule, options, optimizer_cls):
    alone, net = Net(seed=0, **options), Net(seed=context.rank, **options)
    fsdp = FSDP(net, shard=RULES[rule])
    optimizers = [optimizer_cls(module.parameters()) for module in (alone, fsdp)]
    for step in range(4):
        branches = [(), (0,), (0, 1)][step % 3]
        loss(alone(data(step), branches)).backward()
        synchronize(fsdp, loss(fsdp(share(context, data(step)), branches=branches)))
        for (name, parameter), wanted in zip(net.named_parameters(), alone.parameters(), strict=True):
            assert (parameter.grad is None) == (wanted.grad is None), name
            if wanted.grad is not None:
                assert (parameter.grad.shape, parameter.grad.dtype) == (parameter.shape, parameter.dtype)
        step_all(optimizers, set_to_none=step % 2 == 0)
        assert_same(fsdp.full_state_dict(), alone.state_dict())


@on_ranks(1, 2, 3)
@pytest.mark.parametrize(("rule", "tied"), [("layers", True), ("blocks", False), ("blocks", True), ("whole", False)])
def test_training_equals_one_process_with_the_full_batch_at_every_step(context, rule, tied):
    assert_equal_at_every_step(context, rule, {"tied": tied}, partial(torch.optim.AdamW, lr=0.05))


@on_ranks(2)
@pytest.mark.parametrize(
    ("rule", "every", "reentrant"),
    [("layers", 1, True), ("layers", 4, False), ("blocks", 1, False), ("blocks", 2, True), ("whole", 2, False)],
)
def test_checkpointed_modules_are_gathered_again(context, rule, every, reentrant):
    way = {"checkpointed": every, "reentrant": reentrant}
    assert_equal_at_every_step(context, rule, way, partial(torch.optim.SGD, lr=0.05))


@on_ranks(1, 2)
@pytest.mark.parametrize(("dtype", "rule"), [(torch.float16, "layers"), (torch.bfloat16, "blocks")])
def test_compute_dtype_rounds_weights_and_gradients_but_not_the_shards(context, dtype, rule):
    net, masters = Net(seed=0, dtype=torch.float32), Net(seed=0, dtype=torch.float32)
    net.offset = net.offset.to(dtype)
    fsdp = FSDP(net, compute_dtype=dtype, shard=RULES[rule])
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (masters, fsdp)]
    branches = (0,) if context.world_size > 1 else ()  # used twice, where replicated biases are summed in fp32
    for step in range(3):
        alone = copy.deepcopy(masters).to(dtype)
        loss(alone(data(step), branches)).backward()
        for master, parameter in zip(masters.parameters(), alone.parameters(), strict=True):
            master.grad = None if parameter.grad is None else parameter.grad.float()
        output = fsdp(share(context, data(step)), branches)
        assert output.dtype == dtype
        synchronize(fsdp, loss(output))
        assert all(shard.grad is None or shard.grad.dtype == torch.float32 for shard in fsdp.parameters())
        step_all(optimizers)
    # Rounding of sums of a few hundred terms of order one; a single rank has exactly the sums of one process.
    tolerance = 0.0 if context.world_size == 1 else 50 * torch.finfo(dtype).eps
    assert_same(fsdp.full_state_dict(), masters.state_dict() | {"offset": net.offset}, tolerance, tolerance)


@on_ranks(2)
@pytest.mark.parametrize("rule", RULES)
def test_passes_inside_no_sync_are_summed_and_later_gradients_are_added(context, rule):
    alone = Net(seed=0)
    fsdp = FSDP(Net(seed=0), shard=RULES[rule])
    for used in ((0,), ()):  # the second time adds to the first one's gradients, one of which stays the same
        parts = share(context, data()).chunk(2)
        with fsdp.no_sync():
            loss(fsdp(parts[0], used)).backward()
        synchronize(fsdp, loss(fsdp(parts[1])))
        for rank_part in data().chunk(context.world_size):
            for part, branches in zip(rank_part.chunk(2), [used, ()], strict=True):
                (loss(alone(part, branches)) / context.world_size).backward()
    for module in (alone, fsdp):
        torch.optim.SGD(module.parameters(), lr=0.1).step()
    assert_same(fsdp.full_state_dict(), alone.state_dict())
