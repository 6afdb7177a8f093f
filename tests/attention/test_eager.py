import math

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

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


def saved_score_sized_tensors(shape, function, *args):
    """Run `function` and return the distinct tensors of trailing `shape` that autograd keeps."""
    saved = {}

    def pack(tensor):
        if tensor.shape[-2:] == shape:
            saved[tensor.data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        output = function(*args)
    assert output.requires_grad
    return list(saved.values())


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


def test_inputs_are_left_as_they_were():
    inputs = random_qkv(12, 12)
    copies = [tensor.clone() for tensor in inputs]
    eager_attention(*inputs, True)
    torch.testing.assert_close(inputs, copies, rtol=0, atol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_only_the_softmax_output_is_kept_for_backward(is_causal):
    inputs = random_qkv(24, 40, requires_grad=True)
    (weights,) = saved_score_sized_tensors((24, 40), eager_attention, *inputs, is_causal)
    assert weights.numel() == 2 * 3 * 24 * 40
    torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))


def test_autocast_keeps_at_most_a_low_precision_copy_beside_the_softmax_output():
    inputs = random_qkv(24, 40, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        saved = saved_score_sized_tensors((24, 40), eager_attention, *inputs, True)
    assert [tensor.dtype for tensor in saved].count(torch.bfloat16) == 1
    assert [tensor.dtype for tensor in saved].count(torch.float32) <= 1


def test_ranges_name_the_three_phases_in_order():
    names = []

    def listen(name):
        names.append(name)
        return torch.profiler.record_function(name)

    with listening(listen):
        eager_attention(*random_qkv(4, 4), True)
    assert names == ["attention scores", "softmax", "final matmul"]
