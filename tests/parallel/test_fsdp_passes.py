from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pipeline.parallel import FSDP

from ..ranks import on_ranks
from .nets import Net, by_block, data, go_backward, loss, share
from .ways import assert_same, step_all, synchronize


def sharded_and_alone(shard=by_block):
    """Make a net whose first and last layers share a weight, sharded and whole, each with an optimizer."""
    fsdp, alone = FSDP(Net(tied=True), shard=shard), Net(tied=True)
    return fsdp, alone, [torch.optim.SGD(each.parameters(), lr=0.1, weight_decay=0.1) for each in (fsdp, alone)]


def assert_alike_after_step(fsdp, alone, optimizers):
    step_all(optimizers)
    assert_same(fsdp.full_state_dict(), alone.state_dict())


@on_ranks(2)
def test_several_forward_and_backward_passes_are_summed(context):
    fsdp, alone, optimizers = sharded_and_alone()
    for step in range(3):
        first, second = data(step), data(step + 9)
        one = loss(fsdp(share(context, first), (1,)))
        with torch.inference_mode():
            fsdp(share(context, second))
        one.backward(retain_graph=True)
        one.backward()
        synchronize(fsdp, fsdp(share(context, first)).mean() + fsdp(share(context, second)).mean())
        (2 * loss(alone(first, (1,))) + alone(first).mean() + alone(second).mean()).backward()
        assert_alike_after_step(fsdp, alone, optimizers)


@on_ranks(2)
def test_a_unit_used_twice_is_sent_once_and_all_but_the_first_during_backward(context):
    fsdp, *_ = sharded_and_alone()
    with mock.patch.object(dist, "reduce_scatter_tensor", wraps=dist.reduce_scatter_tensor) as sent:
        with fsdp.no_sync():
            fsdp(data()).sum().backward()
        assert sent.call_count == 0
        fsdp(data()).sum().backward()
        assert sent.call_count == len(fsdp.module.blocks)
        fsdp.finish_gradient_synchronization()
        assert sent.call_count == len(fsdp.module.blocks) + 1


def interrupt(*_):
    raise KeyboardInterrupt


@on_ranks(2)
def test_zero_grad_drops_gradients_of_failed_and_unsynchronised_passes(context):
    fsdp, alone, optimizers = sharded_and_alone()
    part = share(context, data())
    for _ in range(2):
        hook = fsdp.module.blocks[1].up.register_forward_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            fsdp(part)
        hook.remove()
        go_backward(fsdp, part, breaks_behind="embedding")
        with fsdp.no_sync():
            go_backward(fsdp, part)
        fsdp.zero_grad()
        synchronize(fsdp, loss(fsdp(part)))
        loss(alone(data())).backward()
        assert_alike_after_step(fsdp, alone, optimizers)


@on_ranks(1, 3)
def test_gradients_are_clipped_by_the_norm_of_all_shards_and_replicated_parameters(context):
    fsdp, alone, optimizers = sharded_and_alone(lambda module: isinstance(module, nn.LayerNorm))
    synchronize(fsdp, loss(fsdp(share(context, data()))))
    loss(alone(data())).backward()
    norm = float(fsdp.clip_grad_norm_(0.01))
    assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(alone.parameters(), 0.01)))
    assert norm > 0.01
    assert_alike_after_step(fsdp, alone, optimizers)


class Noting(nn.Linear):
    noted = None

    def get_extra_state(self):
        return self.noted

    def set_extra_state(self, state):
        self.noted = state


@on_ranks(2)
def test_training_does_not_change_a_saved_state_and_extra_state_round_trips(context):
    fsdp = FSDP(Noting(3, 3))
    saved = fsdp.full_state_dict()
    bias = saved["bias"].clone()
    with torch.no_grad():
        fsdp.module.bias.add_(1)
    assert torch.equal(saved["bias"], bias)
    assert not saved["bias"].requires_grad
    fsdp.load_full_state_dict(saved | {"_extra_state": 7})
    assert torch.equal(fsdp.module.bias.detach(), bias)
    assert fsdp.module.noted == 7
