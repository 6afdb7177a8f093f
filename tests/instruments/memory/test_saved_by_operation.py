import gc
import weakref

import torch
from torch import nn

from pipeline.instruments.memory.saved_tensors import saved_by_operation


class Gated(nn.Module):
    """Multiply the sigmoid of one product with another product of the same input."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 8, bias=False)
        self.up = nn.Linear(4, 8, bias=False)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.up(x)


def test_each_storage_is_named_once_by_its_first_module_and_operation():
    module, x = Gated(), torch.randn(3, 4, requires_grad=True)
    output, saved = saved_by_operation(module, x)
    found = [(one.module, one.operation, one.dtype, one.shape, one.size_bytes) for one in saved]
    # The input is saved by both products and counts once; the parameters do not count.
    assert found == [
        ("gate", "Mm.self", "float32", (3, 4), 48),
        ("", "Sigmoid.result", "float32", (3, 8), 96),
        ("", "Mul.other", "float32", (3, 8), 96),
    ]
    torch.testing.assert_close(output, module(x))


class Doubled(torch.autograd.Function):
    """Save what it gets and twice that."""

    @staticmethod
    def forward(ctx, x, _y):
        doubled = 2 * x
        ctx.save_for_backward(x, doubled)
        return doubled.clone()


def test_what_a_function_of_ones_own_saves_is_named_by_its_number():
    class Doubling(nn.Module):
        def forward(self, x):
            return Doubled.apply(torch.sigmoid(x), torch.ones(3))  # the second operand has no gradient

    _, saved = saved_by_operation(Doubling(), torch.randn(3, requires_grad=True))
    assert [one.operation for one in saved] == ["Sigmoid.result", "Doubled.1"]


def test_nothing_stays_alive_or_hooked_afterwards():
    module, x = Gated(), torch.randn(3, 4, requires_grad=True)
    output, _ = saved_by_operation(module, x)
    kept = weakref.ref(output)
    output.sum().backward()
    del output
    gc.collect()
    assert kept() is None
    assert not module._forward_hooks
    assert not module.gate._forward_pre_hooks
