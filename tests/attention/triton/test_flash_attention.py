import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pipeline.attention import FlashAttentionTriton, flash_attention

from ..reference import MASKS, assert_as_exact_as_the_formula, assert_equal, by_formula, inputs_of, results
from ..small_tiles import IN_CHUNKS, with_small_tiles

WAYS = {
    "as planned": FlashAttentionTriton.apply,
    "many tiles": with_small_tiles(True),
    "dq summed": with_small_tiles(False),
    "chunks": with_small_tiles(True, **IN_CHUNKS),
}


# With small tiles half the rows still fill many, and Triton's interpreter takes a quarter of the time. Chunks and
# summed dq are two ways to end the same loops, so each gets only every third mask.
HALF_MASKS = [(-(-n // 2), -(-m // 2), is_causal, window and -(-window // 2)) for n, m, is_causal, window in MASKS]
MASKS_OF = dict(zip(WAYS, (MASKS[::3], HALF_MASKS, HALF_MASKS[::3], HALF_MASKS[1::3]), strict=True))
MASKS_BY_WAY = [pytest.param(way, mask, id=f"{way}-{mask}") for way, masks in MASKS_OF.items() for mask in masks]


def assert_exact(way, *inputs, **arguments):
    def by_position(q, k, v, is_causal=False, scale=None, enable_gqa=False, window=None):
        return WAYS[way](q, k, v, is_causal, scale, enable_gqa, window)

    assert_as_exact_as_the_formula(by_position, *inputs, **arguments)


@pytest.mark.parametrize(("way", "mask"), MASKS_BY_WAY)
def test_masks_hide_what_their_definition_hides(way, mask):
    n_queries, n_keys, is_causal, window = mask
    assert_exact(way, *inputs_of(n_queries, n_keys), is_causal=is_causal, window=window)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("heads", "kv_heads", "is_causal"), [(4, 2, "bottom_right"), (3, 1, False)])
def test_query_heads_may_share_keys_and_values(heads, kv_heads, is_causal, way):
    inputs = inputs_of(33, 40, heads=heads, kv_heads=kv_heads, dtype=torch.float16)
    assert_exact(way, *inputs, is_causal=is_causal, enable_gqa=True)


def test_shared_keys_are_not_copied_and_their_gradients_are_bitwise_repeatable():
    q, k, v, do = inputs_of(40, 50, heads=4, kv_heads=2)
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    output = flash_attention(q, k, v, enable_gqa=True)
    kept = {tensor.data_ptr() for tensor in output.grad_fn.saved_tensors}
    assert {k.data_ptr(), v.data_ptr()} < kept
    first = torch.autograd.grad(output, (q, k, v), do)
    assert_equal(results(flash_attention, q, k, v, do, enable_gqa=True)[1:], first)


@pytest.mark.parametrize(
    ("head_dim", "way"), [(1, "as planned"), (250, "as planned"), (1, "chunks"), (33, "many tiles"), (33, "chunks")]
)
def test_any_head_dimension_up_to_256_has_a_kernel(head_dim, way):
    assert_exact(way, *inputs_of(33, 40, head_dim), is_causal=True)


@pytest.mark.parametrize("scale", [0.01, 1])
def test_scores_are_scaled_as_asked(scale):
    assert_as_exact_as_the_formula(flash_attention, *inputs_of(40, 70), is_causal=True, scale=scale)


@pytest.mark.parametrize("mask", [*HALF_MASKS[:2], HALF_MASKS[6], (20, 30, False, None)])
def test_the_log_sum_exp_is_returned_on_request_and_has_no_gradient(mask):
    n_queries, n_keys, is_causal, window = mask
    q, k, v, do = inputs_of(n_queries, n_keys)
    arguments = {"is_causal": is_causal, "window": window}
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    output, lse = flash_attention(*inputs, **arguments, return_lse=True)
    assert not lse.requires_grad
    exact = by_formula(q.double(), k.double(), v.double(), **arguments)[1].detach()
    torch.testing.assert_close(lse.double(), exact, rtol=1e-5, atol=1e-5)
    without = results(flash_attention, q, k, v, do, **arguments)
    assert_equal((output, *torch.autograd.grad(output, inputs, do)), without)


def test_the_log_sum_exp_stays_in_fp32_under_autocast():
    q, k, v, _ = inputs_of(20, 20, heads=4, kv_heads=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, lse = flash_attention(q, k, v, enable_gqa=True, return_lse=True)
    assert (output.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"is_causal": None}, 'is_causal must be False, True or "bottom_right", got None'),
        ({"is_causal": "top_left"}, "is_causal must be False, True or \"bottom_right\", got 'top_left'"),
        ({"scale": -1.0}, "scale must be a number above 0, got -1.0"),
        ({"scale": math.nan}, "scale must be a number above 0, got nan"),
        ({"is_causal": torch.ones(8, 8).bool()}, 'is_causal must be False, True or "bottom_right", got a tensor$'),
        ({"scale": torch.tensor(0.5)}, "scale must be a number above 0, got a tensor$"),
        ({"scale": "0.5"}, "scale must be a number above 0, got '0.5'"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 3.0}, "window must be an int, got 3.0"),
        ({"enable_gqa": True}, "k has 3 heads: must be a number that divides q's, 4"),
        ({}, r"k has shape \(1, 3, 8, 16\): must be as q, \(1, 4, 8, 16\), except for the sequence"),
    ],
)
def test_unsupported_arguments_are_refused_in_one_line(arguments, complaint):
    q, k, v, _ = inputs_of(8, 8, heads=4, kv_heads=4 if {"is_causal", "scale", "window"} & set(arguments) else 3)
    for mode in (nullcontext(), FlopCounterMode(display=False)):  # dispatch modes get operators
        with mode, pytest.raises(ValueError, match=complaint) as refused:
            flash_attention(q, k, v, **arguments)
        assert "\n" not in str(refused.value)


def test_numpy_numbers_are_accepted():
    q, k, v, _ = inputs_of(20, 20)
    found = flash_attention(q, k, v, scale=np.float32(0.5), window=np.int64(3))
    assert torch.equal(found, flash_attention(q, k, v, scale=0.5, window=3))


def test_functorch_transforms_are_refused_with_advice():
    q = torch.randn(3, 2, 8, 16)
    grad = torch.func.grad(lambda q, k, v: flash_attention(q, k, v).sum())
    for transformed in (torch.vmap(flash_attention), grad):
        with pytest.raises(RuntimeError, match=r"functorch transforms.*part of the batch"):
            transformed(q, q, q)


def test_it_compiles_to_one_graph_with_the_same_results():
    q, k, v, do = inputs_of(20, 25, heads=4, kv_heads=2)
    arguments = {"is_causal": "bottom_right", "scale": 0.3, "window": 9, "enable_gqa": True}

    def attend(q, k, v):
        output, lse = flash_attention(q, k, v, **arguments, return_lse=True)
        return output * 2, lse

    torch.compiler.reset()  # else torch gives up after compiling a function a few times
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    inputs = [tensor.requires_grad_() for tensor in (q, k, v)]
    (output, lse), (expected, expected_lse) = compiled(*inputs), attend(*inputs)
    assert_equal((output, lse), (expected, expected_lse))
    assert_equal(*(torch.autograd.grad(each, inputs, do) for each in (output, expected)))


def test_the_custom_operators_pass_opcheck():
    q, k, v, do = inputs_of(20, 25, heads=4, kv_heads=2)
    arguments = (True, True, 0.3, True, 9)
    o, lse = torch.ops.llm_systems_pipeline.flash_attention_forward(q, k, v, *arguments)
    torch.library.opcheck(torch.ops.llm_systems_pipeline.flash_attention_forward, (q, k, v, *arguments))
    given = (q, k, v, o, lse, do, *arguments)
    torch.library.opcheck(torch.ops.llm_systems_pipeline.flash_attention_backward, given)
