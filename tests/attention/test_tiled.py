import pytest
import torch

from pipeline.attention import FlashAttentionTiled
from pipeline.attention.tiled import TILE

from .reference import assert_rounded_at_most, random_inputs, uncancelled_inputs

LENGTHS = [(1, 1), (17, 17), (113, 203), (203, 113), (239, 1), (2 * TILE, 2 * TILE)]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_output_and_gradients_are_sums_in_fp32_rounded_once(is_causal, dtype):
    for n_queries, n_keys in LENGTHS:
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


@pytest.mark.parametrize(("mask", "shown"), [("bottom_right", "'bottom_right'"), (torch.ones(8, 8).bool(), "a tensor")])
def test_other_masks_are_refused(mask, shown):
    q, k, v, _ = random_inputs((2, 8, 16), 8, torch.float32)
    with pytest.raises(ValueError, match=f"^is_causal must be False or True, got {shown}$"):
        FlashAttentionTiled.apply(q, k, v, mask)
