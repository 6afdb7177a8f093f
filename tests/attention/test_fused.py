"""Test what the fused implementations in Triton and in PyTorch operations have in common."""

import math

import pytest
import torch

from pipeline.attention import ATTENTION, FlashAttentionTiled, FlashAttentionTriton

from .reference import assert_rounded_at_most, random_inputs

NAMES = {"tiled": FlashAttentionTiled, "flash": FlashAttentionTriton}
either = pytest.mark.parametrize("name", NAMES)


@either
def test_only_inputs_output_and_log_sum_exp_are_kept(name):
    q, k, v, _ = random_inputs((2, 3, 40, 16), 60, torch.float16)
    output = NAMES[name].apply(*(tensor.requires_grad_() for tensor in (q, k, v)), False)
    kept = output.grad_fn.saved_tensors
    (lse,) = [tensor for tensor in kept if tensor.shape == q.shape[:-1]]
    assert len(kept) == 5
    scores = q.double() @ k.double().transpose(-2, -1) / math.sqrt(16)
    torch.testing.assert_close(lse, scores.logsumexp(-1).float())


@either
@pytest.mark.parametrize("loss", [torch.sum, torch.norm])
def test_gradients_cannot_be_differentiated_again(name, loss):
    q, k, v, _ = random_inputs((2, 8, 16), 8, torch.float32)
    output = NAMES[name].apply(q.requires_grad_(), k, v, True)
    (dq,) = torch.autograd.grad(loss(output), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dq.sum().backward()


@pytest.mark.parametrize("name", [*NAMES, "sdpa"])
def test_attention_under_autocast_uses_autocasts_dtype(name):
    q, k, v, _ = random_inputs((1, 2, 20, 16), 20, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ATTENTION[name](q, k, v, True)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), ATTENTION["eager"](q, k, v, True), rtol=0, atol=0.05)


@pytest.mark.parametrize("is_causal", [True, False])
def test_sdpa_equals_eager_attention(is_causal):
    q, k, v, _ = random_inputs((1, 2, 20, 16), 20, torch.float32)
    torch.testing.assert_close(ATTENTION["sdpa"](q, k, v, is_causal), ATTENTION["eager"](q, k, v, is_causal))


def test_large_logits_do_not_overflow():
    inputs = random_inputs((1, 2, 150, 16), 150, torch.float32, scale=20.0)
    assert_rounded_at_most(1, FlashAttentionTiled.apply, *inputs, True)
