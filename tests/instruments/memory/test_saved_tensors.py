import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.instruments.memory.saved_tensors import saved_bytes


@pytest.mark.parametrize(
    ("forward", "count"),
    [
        (lambda x: x.exp(), 40),
        (lambda x: (lambda y: y[:5] * y[5:])(x.exp()), 40),  # both save the result of exp
        (lambda x: x * x, 0),
        (lambda x: x.exp().exp().exp(), 120),
    ],
)
def test_what_is_saved_adds_up_once_each_and_inputs_not_at_all(forward, count):
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
