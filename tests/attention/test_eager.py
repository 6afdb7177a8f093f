import math

import pytest
import torch

from pipeline.attention.eager import eager_attention
from pipeline.ranges import listening


def random_qkv(n_queries, n_keys, head_dim=16, dtype=torch.float32, requires_grad=False):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, 3, length, head_dim, generator=generator, dtype=torch.float64)
        .to(dtype)
        .requires_grad_(requires_grad)
        for length in (n_queries, n_keys, n_keys)
    ]


def attention_by_rows(q, k, v, is_causal):
    """One query at a time, over the keys that it may see."""
    rows = []
    for i in range(q.shape[-2]):
        visible = slice(0, i + 1) if is_causal else slice(None)
        scores = torch.einsum("...d,...kd->...k", q[..., i, :], k[..., visible, :]) / math.sqrt(q.shape[-1])
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        rows.append(torch.einsum("...k,...kd->...d", weights, v[..., visible, :]))
    return torch.stack(rows, dim=-2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(24, 24), (9, 24), (24, 9), (1, 1)])
def test_output_and_gradients_equal_the_formula_in_fp64(n_queries, n_keys, is_causal):
    inputs = random_qkv(n_queries, n_keys, dtype=torch.float64, requires_grad=True)
    expected = attention_by_rows(*inputs, is_causal)
    actual = eager_attention(*inputs, is_causal)
    output_gradient = torch.randn_like(expected)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(
        torch.autograd.grad(actual, inputs, output_gradient),
        torch.autograd.grad(expected, inputs, output_gradient),
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_rounding_error_is_that_of_the_dtype(dtype, tolerance):
    inputs = random_qkv(64, 64, dtype=dtype)
    exact = attention_by_rows(*(tensor.double() for tensor in inputs), True)
    output = eager_attention(*inputs, True)
    assert output.dtype == dtype
    assert (output.double() - exact).abs().max() < tolerance


def test_ranges_name_the_phases_in_order():
    names = []

    def listen(name):
        names.append(name)
        return torch.profiler.record_function(name)

    with listening(listen):
        eager_attention(*random_qkv(4, 4), True)
    assert names == ["attention scores", "mask", "softmax", "final matmul"]
