"""Test the options of `flash_attention` (masks, scale, shared heads, log-sum-exp) in compiled kernels."""

import functools

import pytest
import torch

from pipeline.attention import flash_attention
from pipeline.attention.triton.kernel_sets import HOPPER, has_gluon, kernels_of

from ..reference import (
    FP32_RELATIVE_ERROR,
    MASKS,
    assert_as_exact_as_the_formula,
    assert_equal,
    by_formula,
    inputs_of,
    results,
)

pytestmark = pytest.mark.gpu(shared=True)
on_hopper = pytest.mark.skipif(
    not (torch.cuda.is_available() and torch.cuda.get_device_capability() == HOPPER and has_gluon()),
    reason="no Hopper GPU, or no Gluon",
)
# Dtypes, and the error allowed beyond twice the formula's (which multiplies fp32 natively), over the exact norm.
DTYPES = {torch.bfloat16: 0.0, torch.float16: 0.0, torch.float32: FP32_RELATIVE_ERROR}
# Ten times the lengths of the interpreter's tests, which covers chunks, descriptors and tiles that need no mask.
LONG_MASKS = [(10 * a + 3, 10 * b + 1, is_causal, window and 10 * window) for a, b, is_causal, window in MASKS]
REPEATS = 50


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_masks_hide_what_their_definition_hides(head_dim, dtype):
    for n_queries, n_keys, is_causal, window in (*MASKS, *LONG_MASKS):
        inputs = inputs_of(n_queries, n_keys, head_dim, dtype=dtype, device="cuda")
        allowed = {"of_exact": DTYPES[dtype]}
        assert_as_exact_as_the_formula(flash_attention, *inputs, **allowed, is_causal=is_causal, window=window)


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_head_dimension_up_to_256_has_a_kernel(dtype):
    for head_dim in (1, 7, 33, 100, 250):
        for n_queries, n_keys in ((40, 70), (1100, 1030)):
            inputs = inputs_of(n_queries, n_keys, head_dim, dtype=dtype, device="cuda")
            assert_as_exact_as_the_formula(flash_attention, *inputs, of_exact=DTYPES[dtype], is_causal=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "kv_heads"), [(8, 2), (6, 1)])
def test_query_heads_may_share_keys_and_values(heads, kv_heads, dtype):
    for n_queries, n_keys in ((49, 70), (1040, 1100), (1, 3000)):
        inputs = inputs_of(n_queries, n_keys, 64, heads, kv_heads, dtype, "cuda")
        for is_causal in (False, "bottom_right"):
            arguments = {"is_causal": is_causal, "enable_gqa": True}
            assert_as_exact_as_the_formula(flash_attention, *inputs, of_exact=DTYPES[dtype], **arguments)


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [40, 64, 80, 96, 128, 256])
def test_query_heads_may_share_keys_and_values_in_gluons_kernels(head_dim, dtype):
    for n_queries, n_keys in ((1040, 1040), (1030, 1600), (2050, 2050)):
        inputs = inputs_of(n_queries, n_keys, head_dim, 48, 12, dtype, "cuda")
        kernels = kernels_of(*inputs[:3], True, enable_gqa=True)
        assert kernels.forward.name == kernels.backward.name == "gluon", kernels
        for is_causal in (False, True):
            assert_as_exact_as_the_formula(flash_attention, *inputs, is_causal=is_causal, enable_gqa=True, scale=0.1)


@on_hopper
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_tiles_of_shared_keys_may_be_scheduled_in_pairs(head_dim):
    heads = torch.cuda.get_device_properties(0).multi_processor_count // 4  # 4 pairs of tiles each: one per program
    inputs = inputs_of(1024, 1024, head_dim, 2 * heads, heads, torch.bfloat16, "cuda")
    assert_as_exact_as_the_formula(flash_attention, *inputs, is_causal=True, enable_gqa=True)


@on_hopper
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_results_with_shared_keys_are_bitwise_repeatable_except_dq(head_dim):
    inputs = inputs_of(1040, 1040, head_dim, 48, 12, torch.bfloat16, "cuda")
    attend = functools.partial(results, flash_attention, *inputs, is_causal=True, enable_gqa=True)
    o, _, dk, dv = attend()
    for _ in range(REPEATS):
        o_again, _, *others = attend()
        assert_equal([o_again, *others], [o, dk, dv])


@pytest.mark.parametrize(
    "arguments", [{"is_causal": "bottom_right", "enable_gqa": True}, {"is_causal": True, "window": 300, "scale": 0.2}]
)
def test_options_work_compiled_and_in_a_cuda_graph(arguments):
    q, k, v, do = inputs_of(1040, 1100, 64, 8, 2 if "enable_gqa" in arguments else 8, torch.bfloat16, "cuda")
    expected = results(flash_attention, q, k, v, do, **arguments)
    torch.compiler.reset()  # else torch gives up after compiling a function a few times
    compiled = torch.compile(functools.partial(flash_attention, **arguments), fullgraph=True)
    inputs = [torch.zeros_like(tensor).requires_grad_() for tensor in (q, k, v)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = flash_attention(*inputs, **arguments)
        gradients = torch.autograd.grad(output, inputs, do)
    with torch.no_grad():
        for given, tensor in zip(inputs, (q, k, v), strict=True):
            given.copy_(tensor)
    graph.replay()
    for found in (results(compiled, q, k, v, do), (output, *gradients)):
        assert_equal(found, expected)


def test_the_log_sum_exp_equals_the_formulas():
    q, k, v, _ = inputs_of(1500, 1040, 64, dtype=torch.bfloat16, device="cuda")
    for arguments in ({"is_causal": "bottom_right"}, {"is_causal": True}, {"is_causal": True, "window": 100}):
        _, lse = flash_attention(q, k, v, **arguments, return_lse=True)
        exact = by_formula(q.double(), k.double(), v.double(), **arguments)[1]
        torch.testing.assert_close(lse.double(), exact, rtol=1e-4, atol=1e-4)
