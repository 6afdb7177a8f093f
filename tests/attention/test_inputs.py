import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from pipeline.attention import FlashAttentionTiled, FlashAttentionTriton, flash_attention, tiled_attention

GOOD = (2, 8, 16)


@pytest.mark.parametrize("function", [FlashAttentionTiled, FlashAttentionTriton])
@pytest.mark.parametrize(
    ("q", "k", "v", "complaint"),
    [
        (torch.zeros(8, 16), None, None, r"q has shape \(8, 16\): must be"),
        (torch.zeros(2, 0, 16), None, None, r"q has shape \(2, 0, 16\): must not be empty"),
        (torch.zeros(GOOD, dtype=torch.int64), None, None, "q is int64: must be one of .*float32"),
        (None, torch.zeros(GOOD, dtype=torch.bfloat16), None, "k is bfloat16 on cpu: must be as q, float32 on cpu"),
        (None, None, torch.zeros(GOOD, device="meta"), "v is float32 on meta: must be as q, float32 on cpu"),
        (None, None, torch.zeros(2, 9, 16), r"v has shape \(2, 9, 16\): must be as k, \(2, 8, 16\)"),
        (torch.zeros(3, 8, 16), None, None, r"k has shape \(2, 8, 16\): must be as q, \(3, 8, 16\)"),
        (torch.zeros(2, 8, 32), None, None, r"k has shape \(2, 8, 16\): must be as q, \(2, 8, 32\)"),
    ],
)
def test_unsupported_inputs_raise_one_clear_error(function, q, k, v, complaint):
    tensors = [torch.zeros(GOOD) if tensor is None else tensor for tensor in (q, k, v)]
    with pytest.raises(ValueError, match=complaint):
        function.apply(*tensors, True)


@pytest.mark.parametrize("attend", [tiled_attention, flash_attention])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_autocast_casts_neither_integers_nor_fp64(attend, dtype):
    tensors = [torch.zeros(GOOD, dtype=dtype)] * 3
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if attend is tiled_attention and dtype == torch.float64:
            assert attend(*tensors, True).dtype == dtype
        else:
            with pytest.raises(ValueError, match=f"q is {str(dtype).removeprefix('torch.')}: must be one of"):
                attend(*tensors, True)


def test_too_wide_heads_and_tensor_wrappers_without_memory_are_refused():
    """A wrapper such as a DTensor reports address 0, and a GPU kernel that reads there would kill the process."""
    with pytest.raises(ValueError, match="head_dim must be at most 256, got 257"):
        FlashAttentionTriton.apply(*[torch.zeros(2, 8, 257)] * 3, True)
    good = torch.zeros(GOOD)
    with pytest.raises(ValueError, match=r"^q is a Tensor, k is a TwoTensor, v is a Tensor: all"):
        FlashAttentionTriton.apply(good, TwoTensor(good, good), good, True)
