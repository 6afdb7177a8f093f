"""What the fused attention functions are compared with."""

import torch

from pipeline.attention import eager_attention


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
