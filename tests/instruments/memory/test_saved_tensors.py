import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pipeline.instruments.memory.saved_tensors import saved_bytes


def test_a_result_saved_twice_counts_once_and_inputs_not_at_all():
    x = torch.randn(10, requires_grad=True)
    # exp saves its result, and so does the product of two views of it.
    assert saved_bytes(lambda: x.exp(), [x]) == 40
    assert saved_bytes(lambda: (lambda y: y[:5] * y[5:])(x.exp()), [x]) == 40
    assert saved_bytes(lambda: x * x, [x]) == 0


def test_what_is_saved_adds_up():
    x = torch.randn(10, requires_grad=True)
    assert saved_bytes(lambda: x.exp().exp().exp(), [x]) == 120


def test_an_operation_that_saves_its_own_output_is_not_kept_alive():
    x = torch.randn(10, requires_grad=True)
    results = []

    def forward():
        result = torch.softmax(x, 0)
        results.append(StorageWeakRef(result.untyped_storage()))
        return result * 2

    saved_bytes(forward, [x])
    assert results[0].expired()
