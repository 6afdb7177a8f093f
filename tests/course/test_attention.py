"""What the course requires of attention as a `torch.autograd.Function`: no head dimension, one saved LSE."""

import pytest
import torch
from torch.testing import assert_close

from pipeline.attention import FlashAttentionTiled, FlashAttentionTriton, eager_attention

BATCH, LENGTH, WIDTH = 4, 128, 64
NEAR = {"rtol": 1e-2, "atol": 1e-2}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("function", "device"),
    [(FlashAttentionTiled, "cpu"), pytest.param(FlashAttentionTriton, "cuda", marks=pytest.mark.gpu)],
)
def test_output_saved_lse_and_gradients_match_plain_attention(function, device, is_causal):
    torch.manual_seed(0)
    q, k, v, upstream = (torch.randn(BATCH, LENGTH, WIDTH, device=device) for _ in range(4))
    inputs, wanted_inputs = ([x.clone().requires_grad_() for x in (q, k, v)] for _ in range(2))
    output, wanted = function.apply(*inputs, is_causal), eager_attention(*wanted_inputs, is_causal)
    assert_close(output, wanted, **NEAR)
    saved = [tensor for tensor in output.grad_fn.saved_tensors if tensor.shape == (BATCH, LENGTH)]
    scores = q @ k.mT / WIDTH**0.5
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
    assert len(saved) == 1
    assert_close(saved[0], scores.logsumexp(-1), **NEAR)
    output.backward(upstream)
    wanted.backward(upstream)
    for x, wanted_x in zip(inputs, wanted_inputs, strict=True):
        assert_close(x.grad, wanted_x.grad, **NEAR)
