import gc
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.instruments.memory.saved_tensors import saved_by_operation, saved_bytes


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 8, bias=False)
        self.up = nn.Linear(4, 8, bias=False)

    def forward(self, x):
        return torch.sigmoid(self.gate(x)) * self.up(x)


def test_each_storage_is_named_once_by_its_first_use_and_nothing_stays_alive_or_hooked():
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
    kept = weakref.ref(output)
    output.sum().backward()
    del output
    gc.collect()
    assert kept() is None
    assert not module._forward_hooks
    assert not module.gate._forward_pre_hooks


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, _y):
        doubled = 2 * x
        ctx.save_for_backward(x, doubled)
        return doubled.clone()


def test_tensors_saved_by_a_custom_function_are_named_by_number():
    class Doubling(nn.Module):
        def forward(self, x):
            return Doubled.apply(torch.sigmoid(x), torch.ones(3))  # the second operand has no gradient

    _, saved = saved_by_operation(Doubling(), torch.randn(3, requires_grad=True))
    assert [one.operation for one in saved] == ["Sigmoid.result", "Doubled.1"]


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        (lambda x: x.exp(), 40),
        (lambda x: (lambda y: y[:5] * y[5:])(x.exp()), 40),  # both save the result of exp
        (lambda x: x * x, 0),
        (lambda x: x.exp().exp().exp(), 120),
    ],
)
def test_each_saved_storage_counts_once_and_inputs_do_not_count(forward, count):
    x = torch.randn(10, requires_grad=True)
    assert saved_bytes(lambda: forward(x), [x]) == count


def test_an_operation_that_saves_its_own_output_is_not_kept_alive():
    x = torch.randn(10, requires_grad=True)
    results = []

    def forward():
        result = torch.softmax(x, 0)
        results.append(StorageWeakRef(result.untyped_storage()))
        return result * 2

    saved_bytes(forward, [x])
    assert results[0].expired()
