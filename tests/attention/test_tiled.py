import math

import pytest
import torch

from pipeline.attention import ATTENTION, FlashAttentionTiled
from pipeline.attention.tiled import TILE

from .reference import assert_rounded_at_most, errors, output_and_gradients, random_inputs, uncancelled_inputs

LENGTHS = [(1, 1), (17, 17), (113, 203), (203, 113), (239, 1), (2 * TILE, 2 * TILE), (300, 300)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_output_and_gradients_are_sums_in_fp32_rounded_once(n_queries, n_keys, is_causal, dtype):
    inputs = random_inputs((2, 3, n_queries, 16), n_keys, dtype)
    assert_rounded_at_most(1, FlashAttentionTiled.apply, *inputs, is_causal)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_over_many_tiles_are_kept_in_fp32(dtype, monkeypatch):
    monkeypatch.setattr("pipeline.attention.tiled.TILE", 16)
    inputs = uncancelled_inputs((1, 2, 512, 16), 512, dtype)
    assert_rounded_at_most(1, FlashAttentionTiled.apply, *inputs, False)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_pass_gradcheck_in_fp64(is_causal, monkeypatch):
    monkeypatch.setattr("pipeline.attention.tiled.TILE", 4)
    q, k, v, _ = random_inputs((2, 7, 3), 9, torch.float64)
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    assert torch.autograd.gradcheck(lambda *qkv: FlashAttentionTiled.apply(*qkv, is_causal), inputs)


def test_large_logits_overflow_nothing():
    inputs = random_inputs((1, 2, 150, 16), 150, torch.float32, scale=20.0)
    assert_rounded_at_most(1, FlashAttentionTiled.apply, *inputs, True)


def test_only_the_inputs_the_output_and_the_log_sum_exp_are_kept():
    q, k, v, _ = random_inputs((2, 3, 40, 16), 60, torch.bfloat16)
    output = FlashAttentionTiled.apply(*(tensor.requires_grad_() for tensor in (q, k, v)), False)
    kept = output.grad_fn.saved_tensors
    (lse,) = [tensor for tensor in kept if tensor.shape == q.shape[:-1]]
    assert len(kept) == 5
    scores = q.double() @ k.double().transpose(-2, -1) / math.sqrt(16)
    torch.testing.assert_close(lse, scores.logsumexp(-1).float())


@pytest.mark.parametrize("loss", [torch.sum, torch.norm])
def test_gradients_cannot_be_differentiated_again(loss):
    q, k, v, _ = random_inputs((2, 8, 16), 8, torch.float32)
    output = FlashAttentionTiled.apply(q.requires_grad_(), k, v, True)
    (dq,) = torch.autograd.grad(loss(output), q, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        dq.sum().backward()


@pytest.mark.parametrize(
    ("mask", "shown"), [("bottom_right", "'bottom_right'"), (None, "None"), (torch.ones(8, 8).bool(), "a tensor")]
)
def test_other_masks_are_refused(mask, shown):
    q, k, v, _ = random_inputs((2, 8, 16), 8, torch.float32)
    with pytest.raises(ValueError, match=f"^is_causal must be False or True, got {shown}$"):
        FlashAttentionTiled.apply(q, k, v, mask)


def test_three_dimensions_are_four_with_one_head():
    q, k, v, do = random_inputs((2, 1, 50, 16), 50, torch.float32)
    four = output_and_gradients(FlashAttentionTiled.apply, q, k, v, do, True)
    three = output_and_gradients(FlashAttentionTiled.apply, q[:, 0], k[:, 0], v[:, 0], do[:, 0], True)
    for a, b in zip(three, four, strict=True):
        torch.testing.assert_close(a, b[:, 0], rtol=0, atol=0)


def test_under_autocast_attention_is_computed_in_its_dtype():
    q, k, v, _ = random_inputs((1, 2, 20, 16), 20, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = ATTENTION["tiled"](q, k, v, True)
    assert output.dtype == torch.bfloat16
    assert errors([output], [ATTENTION["eager"](q.double(), k.double(), v.double(), True)]) < 0.05
