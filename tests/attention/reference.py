"""What the fused attention functions are compared with."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import eager_attention
from pipeline.attention.reference import allowed_errors, exact_attention

# Three TF32 products stay below it; a single one is two hundred times as far off.
FP32_RELATIVE_ERROR = 2e-6
SCORES_AT_ONCE = 2**25  # in fp64: with all of a case's at once a test took 26 GB, and five of them no GPU of 80 GB


def random_inputs(shape_q, n_keys, dtype, device="cpu", seed=0, scale=1.0):
    """Draw q, k, v and the output's gradient, normal numbers; k and v are as q but for the sequence."""
    generator = torch.Generator().manual_seed(seed)
    shape_k = (*shape_q[:-2], n_keys, shape_q[-1])
    drawn = [torch.randn(shape, generator=generator) for shape in (shape_q, shape_k, shape_k, shape_q)]
    q, k, v, do = [tensor.to(device=device, dtype=dtype) for tensor in drawn]
    return q * scale, k * scale, v, do


def uncancelled_inputs(shape_q, n_keys, dtype, device="cpu"):
    """Draw inputs as `random_inputs` of which the products that are added up have one sign, in most sums.

    A sum is then as large as its natural scale, and one that is not kept in fp32 loses more than one rounding.
    """
    q, k, v, do = (tensor.abs() for tensor in random_inputs(shape_q, n_keys, torch.float32))
    # Half of the keys have gradients of scores of the other sign, and are themselves of the other sign. Their values
    # are not in some columns, so that an output does not vanish.
    sign = torch.ones(n_keys, 1)
    sign[::2] = -1
    head_dim = shape_q[-1]
    v = v * torch.where(torch.arange(head_dim) < head_dim // 4, 1.0, sign)
    return [tensor.to(device=device, dtype=dtype) for tensor in (q, 0.1 * sign * k, v, do)]


def output_and_gradients(function, q, k, v, do, is_causal):
    """Run forward and backward; return the output and the gradients of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = function(*inputs, is_causal)
    return [output.detach(), *torch.autograd.grad(output, inputs, do)]


def errors(actual, exact):
    """Return the largest absolute error of each tensor."""
    return torch.stack([(a.double() - e).abs().max() for a, e in zip(actual, exact, strict=True)])


def relative_errors(actual, exact):
    """Return the L2 norm of each tensor's error over that of the tensor."""
    return torch.stack([(a.double() - e).norm() / e.norm() for a, e in zip(actual, exact, strict=True)])


def attention_errors(actual, exact):
    """Return the relative errors of output and gradients, where a gradient vanishes those over its natural scale."""
    pairs = zip(("output", "dq", "dk", "dv"), actual, strict=True)
    return torch.tensor([exact.relative_error(quantity, tensor) for quantity, tensor in pairs])


def assert_rounded_at_most(roundings, function, q, k, v, do, is_causal):
    """Assert that no number is off by more than sums kept in fp32 (in fp64, for fp64) and some roundings account for.

    `roundings`: how often a number is rounded to the inputs' dtype on its way: 1 where only results are, 2 where the
    weights are too.
    """
    inputs = (q, k, v, do)
    actual = output_and_gradients(function, *inputs, is_causal)
    assert [tensor.dtype for tensor in actual] == [q.dtype] * 4
    matrices = max(1, SCORES_AT_ONCE // (q.shape[-2] * k.shape[-2]))
    some = (tensor.flatten(0, -3).split(matrices) for tensor in (*inputs, *actual))
    for *some_inputs, output, dq, dk, dv in zip(*some, strict=True):
        exact = output_and_gradients(eager_attention, *(tensor.double() for tensor in some_inputs), is_causal)
        allowed = allowed_errors(roundings, *some_inputs, is_causal)
        found = zip((output, dq, dk, dv), exact, allowed, strict=True)
        ratios = [((a.double() - e).abs() / b).max().item() for a, e, b in found]
        assert all(error <= 1 for error in ratios), ratios  # not so where one is NaN


def assert_fp32_is_exact(function, q, k, v, do, is_causal):
    """Assert that fp32's relative errors against fp64 are small: they are of roundings, not of lower precision."""
    actual = output_and_gradients(function, q, k, v, do, is_causal)
    assert [tensor.dtype for tensor in actual] == [torch.float32] * 4
    errors = attention_errors(actual, exact_attention(q, k, v, do, is_causal))
    assert (errors <= FP32_RELATIVE_ERROR).all(), errors.tolist()


def assert_as_exact_as_torchs_fp32_kernel(function, q, k, v, do, is_causal, factor=1.1):
    """Assert that relative errors against fp64 are at most `factor` times those of torch's own fp32 kernel on a GPU.

    That kernel, `EFFICIENT_ATTENTION`, multiplies fp32 on tensor cores too.
    """
    inputs = (q, k, v, do)
    exact = exact_attention(*inputs, is_causal)
    errors, torchs = (
        attention_errors(output_and_gradients(implementation, *inputs, is_causal), exact)
        for implementation in (function, _efficient_attention)
    )
    assert (errors <= factor * torchs).all(), (errors / torchs).tolist()


def _efficient_attention(q, k, v, is_causal):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
