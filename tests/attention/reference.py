"""What the fused attention functions are compared with."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import eager_attention

# Three TF32 products stay below it; a single one is two hundred times as far off.
FP32_RELATIVE_ERROR = 2e-6


def random_inputs(shape_q, n_keys, dtype, device="cpu", seed=0, scale=1.0):
    """Draw q, k, v and the output's gradient, normal numbers; k and v are as q but for the sequence."""
    generator = torch.Generator().manual_seed(seed)
    shape_k = (*shape_q[:-2], n_keys, shape_q[-1])
    drawn = [torch.randn(shape, generator=generator) for shape in (shape_q, shape_k, shape_k, shape_q)]
    q, k, v, do = [tensor.to(device=device, dtype=dtype) for tensor in drawn]
    return q * scale, k * scale, v, do


def output_and_gradients(function, q, k, v, do, is_causal):
    """Run forward and backward; return the output and the gradients of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = function(*inputs, is_causal)
    return [output.detach(), *torch.autograd.grad(output, inputs, do)]


def errors(actual, exact):
    """Return the largest absolute error of each tensor."""
    return torch.stack([(a.double() - e).abs().max() for a, e in zip(actual, exact, strict=True)])


def relative_errors(actual, exact):
    """Return the L2 norm of each tensor's error over that of the tensor, or over the largest's where it vanishes.

    The gradients of q and k vanish where there is one key: it weighs 1 whatever its score.
    """
    norms = torch.stack([e.norm() for e in exact])
    norms = torch.where(norms > 1e-9 * norms.max(), norms, norms.max())
    return torch.stack([(a.double() - e).norm() for a, e in zip(actual, exact, strict=True)]) / norms


def assert_as_exact_as_plain(function, q, k, v, do, is_causal, factor=2.0):
    """Assert that errors against fp64 are at most `factor` times those of the plain formula in the inputs' dtype."""
    inputs = (q, k, v, do)
    exact = output_and_gradients(eager_attention, *(tensor.double() for tensor in inputs), is_causal)
    actual = output_and_gradients(function, *inputs, is_causal)
    plain = output_and_gradients(eager_attention, *inputs, is_causal)
    assert [tensor.dtype for tensor in actual] == [q.dtype] * 4
    # Where the plain formula happens to be exact, one rounding of the largest number is allowed all the same.
    rounding = torch.finfo(q.dtype).eps * max(tensor.abs().max() for tensor in exact)
    allowed = factor * errors(plain, exact) + rounding
    assert (errors(actual, exact) <= allowed).all(), (errors(actual, exact) / allowed).tolist()


def assert_fp32_is_exact(function, q, k, v, do, is_causal):
    """Assert that fp32's relative errors against fp64 are small: they are of roundings, not of lower precision."""
    inputs = (q, k, v, do)
    exact = output_and_gradients(eager_attention, *(tensor.double() for tensor in inputs), is_causal)
    actual = output_and_gradients(function, *inputs, is_causal)
    assert [tensor.dtype for tensor in actual] == [torch.float32] * 4
    found = relative_errors(actual, exact)
    assert (found <= FP32_RELATIVE_ERROR).all(), found.tolist()


def assert_as_exact_as_torchs_fp32_kernel(function, q, k, v, do, is_causal, factor=1.1):
    """Assert that relative errors against fp64 are at most `factor` times those of torch's own fp32 kernel on a GPU.

    That kernel, `EFFICIENT_ATTENTION`, multiplies fp32 on tensor cores too.
    """
    inputs = (q, k, v, do)
    exact = output_and_gradients(eager_attention, *(tensor.double() for tensor in inputs), is_causal)
    found, torchs = (
        relative_errors(output_and_gradients(implementation, *inputs, is_causal), exact)
        for implementation in (function, _efficient_attention)
    )
    assert (found <= factor * torchs).all(), (found / torchs).tolist()


def _efficient_attention(q, k, v, is_causal):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
