"""What the fused attention functions are compared with."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import eager_attention

# Three TF32 products stay below it; a single one is two hundred times as far off.
FP32_RELATIVE_ERROR = 2e-6
# In shorter sequences chance decides which of two kernels is closer.
FEWEST_ROWS_TO_COMPARE = 100


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


def assert_as_exact_as_torchs_fp32_kernel(function, q, k, v, do, is_causal, most=FP32_RELATIVE_ERROR):
    """Assert that relative errors against fp64 are at most `most`, and at most 1.1 times those of torch's own kernel.

    That kernel is `EFFICIENT_ATTENTION`, which multiplies fp32 on tensor cores too. It is asked where the sequences are
    long enough to tell, and where a causal mask means the same to both: where there are as many keys as queries.
    """
    inputs = (q, k, v, do)
    exact = output_and_gradients(eager_attention, *(tensor.double() for tensor in inputs), is_causal)
    actual = output_and_gradients(function, *inputs, is_causal)
    assert [tensor.dtype for tensor in actual] == [torch.float32] * 4
    found = relative_errors(actual, exact)
    assert (found <= most).all(), found.tolist()
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    if min(n_queries, n_keys) >= FEWEST_ROWS_TO_COMPARE and (n_queries == n_keys or not is_causal):
        allowed = 1.1 * relative_errors(output_and_gradients(_efficient_attention, *inputs, is_causal), exact)
        assert (found <= allowed).all(), (found / allowed).tolist()


def _efficient_attention(q, k, v, is_causal):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)
