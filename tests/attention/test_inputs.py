import pytest
import torch

from pipeline.attention import FlashAttentionTiled, FlashAttentionTriton

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
def test_what_cannot_be_done_is_one_clear_error(function, q, k, v, complaint):
    tensors = [torch.zeros(GOOD) if tensor is None else tensor for tensor in (q, k, v)]
    with pytest.raises(ValueError, match=complaint):
        function.apply(*tensors, True)


def test_a_head_dimension_without_a_kernel_is_named_with_the_largest_that_has_one():
    tensors = [torch.zeros(2, 8, 257)] * 3
    with pytest.raises(ValueError, match="head_dim must be at most 256, got 257"):
        FlashAttentionTriton.apply(*tensors, True)
