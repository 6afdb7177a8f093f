import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from pipeline.attention.eager import eager_attention
from pipeline.formulas import attention
from pipeline.formulas.attention import Shape

SHAPES = [Shape(2, 3, 48, 16, False), Shape(2, 3, 48, 16, True), Shape(1, 1, 16, 64, False), Shape(8, 1, 64, 8, True)]
SHAPES += [Shape(2, 6, 48, 16, True, 3), Shape(1, 4, 16, 64, False, 4), Shape(2, 4, 64, 64, True, 2)]
BYTES = {torch.float32: 4, torch.float64: 8}


class LiveBytes(TorchDispatchMode):
    """Count the bytes of storages that operations made and that are still alive, and their peak."""

    def __init__(self):
        super().__init__()
        self.live, self.peak = {}, 0

    def now(self):
        gc.collect()
        return sum(self.live.values())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return result


def inputs(shape, dtype):
    heads = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads)
    return [torch.randn(shape.batch_size, each, shape.seq_len, shape.head_dim, dtype=dtype) for each in heads]


def eager(q, k, v, shape):
    """Compute the plain formula, with keys and values repeated if query heads share them."""
    if shape.has_shared_keys:
        k, v = (x.repeat_interleave(shape.query_heads_per_kv_head, dim=1) for x in (k, v))
    return eager_attention(q, k, v, shape.is_causal)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("shape", SHAPES)
def test_predicted_bytes_are_those_that_an_eager_pass_allocates(shape, dtype):
    with LiveBytes() as counted:
        *leaves, gradient = inputs(shape, dtype)
        output = eager(*(leaf.requires_grad_() for leaf in leaves), shape)
        assert counted.now() == attention.before_backward_bytes(shape, BYTES[dtype])
        torch.autograd.grad(output, leaves, gradient)
    assert counted.peak == attention.peak_bytes(shape, BYTES[dtype], "cpu")


def test_the_peak_on_a_gpu_has_one_more_score_matrix():
    shape = Shape(8, 1, 4096, 64, False)
    peaks = {device_type: attention.peak_bytes(shape, 4, device_type) for device_type in ("cpu", "cuda")}
    assert peaks["cuda"] - peaks["cpu"] == shape.scores * 4
    assert peaks["cuda"] == pytest.approx(4 * shape.scores * 4, rel=0.05)


def test_causal_halves_the_flops_and_backward_has_two_and_a_half_times_the_forward():
    whole, causal = Shape(1, 2, 128, 64, False), Shape(1, 2, 128, 64, True)
    assert attention.forward_flops(causal) * 2 == attention.forward_flops(whole) == 4 * 2 * 128**2 * 64
    of_passes = [attention.pass_flops(whole, name) for name in ("forward", "backward", "forward_backward")]
    assert of_passes == [times * attention.forward_flops(whole) for times in (1, 2.5, 3.5)]
    shared = replace(whole, query_heads_per_kv_head=2)  # sharing keys and values saves no FLOPs
    assert attention.pass_flops(shared, "backward") == attention.pass_flops(whole, "backward")
    assert attention.flash_saved_bytes(shared) == attention.flash_saved_bytes(whole)


def test_the_longest_sequence_that_fits_is_the_last_whose_peak_fits():
    shape = Shape(8, 1, 1, 64, False)
    longest = attention.longest_that_fits(shape, 4, "cuda", memory_bytes=10**9)
    peaks = [attention.peak_bytes(Shape(8, 1, length, 64, False), 4, "cuda") for length in (longest, longest + 1)]
    assert peaks[0] <= 10**9 < peaks[1]
    assert attention.longest_that_fits(shape, 4, "cuda", memory_bytes=10) == 0
