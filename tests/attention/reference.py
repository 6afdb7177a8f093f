"""References for the fused attention functions: fp64, and the formula with every score in memory."""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from pipeline.attention import eager_attention
from pipeline.attention.reference import allowed_errors, exact_attention

# Three TF32 products stay below it; a single one is off by 200 times as much.
FP32_RELATIVE_ERROR = 2e-6
SCORES_AT_ONCE = 2**25  # in fp64: with all at once a test took 26 GB, and five did not fit on an 80 GB GPU


def random_inputs(shape_q, n_keys, dtype, device="cpu", scale=1.0, kv_heads=None):
    """Draw normal q, k, v and output gradient; k and v are shaped like q except for the sequence and the heads."""
    generator = torch.Generator().manual_seed(0)
    shape_k = (*shape_q[:-3], kv_heads or shape_q[-3], n_keys, shape_q[-1])
    drawn = [torch.randn(shape, generator=generator) for shape in (shape_q, shape_k, shape_k, shape_q)]
    q, k, v, do = [tensor.to(device=device, dtype=dtype) for tensor in drawn]
    return q * scale, k * scale, v, do


def uncancelled_inputs(shape_q, n_keys, dtype, device="cpu"):
    """Draw inputs like `random_inputs`, but so that in most sums all products have the same sign.

    A sum is then as large as its natural scale, and a sum that is not kept in fp32 is off by more than one rounding.
    """
    q, k, v, do = (tensor.abs() for tensor in random_inputs(shape_q, n_keys, torch.float32))
    # Half of the keys are negative, and so are the gradients of their scores and their values, except in a quarter of
    # the columns, so that outputs do not vanish.
    sign = torch.ones(n_keys, 1)
    sign[::2] = -1
    head_dim = shape_q[-1]
    v = v * torch.where(torch.arange(head_dim) < head_dim // 4, 1.0, sign)
    return [tensor.to(device=device, dtype=dtype) for tensor in (q, 0.1 * sign * k, v, do)]


def results(attend, q, k, v, do, *arguments, **options):
    """Run forward and backward; return the output and the gradients of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = attend(*inputs, *arguments, **options)
    return [output.detach(), *torch.autograd.grad(output, inputs, do)]


def assert_equal(found, expected, **within):
    """Compare tensors pairwise, bitwise unless `within` sets tolerances."""
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, **({"rtol": 0, "atol": 0} | within))


def relative_errors(actual, exact):
    return torch.stack([(a.double() - e).norm() / e.norm() for a, e in zip(actual, exact, strict=True)])


def attention_errors(actual, exact):
    """Return the relative errors of output and gradients; a vanishing gradient's is relative to its natural scale."""
    pairs = zip(("output", "dq", "dk", "dv"), actual, strict=True)
    return torch.tensor([exact.relative_error(quantity, tensor) for quantity, tensor in pairs])


def assert_rounded_at_most(roundings, function, q, k, v, do, is_causal):
    """Assert that no number is off by more than fp32 sums (fp64 sums for fp64) and `roundings` roundings explain.

    `roundings`: how often a number is rounded to the inputs' dtype: 1 if only results are, 2 if weights are too.
    """
    inputs = (q, k, v, do)
    actual = results(function, *inputs, is_causal)
    assert [tensor.dtype for tensor in actual] == [q.dtype] * 4
    matrices = max(1, SCORES_AT_ONCE // (q.shape[-2] * k.shape[-2]))
    some = (tensor.flatten(0, -3).split(matrices) for tensor in (*inputs, *actual))
    for *some_inputs, output, dq, dk, dv in zip(*some, strict=True):
        exact = results(eager_attention, *(tensor.double() for tensor in some_inputs), is_causal)
        allowed = allowed_errors(roundings, *some_inputs, is_causal)
        found = zip((output, dq, dk, dv), exact, allowed, strict=True)
        ratios = [((a.double() - e).abs() / b).max().item() for a, e, b in found]
        assert all(error <= 1 for error in ratios), ratios  # also fails for NaN


def assert_fp32_is_exact(function, q, k, v, do, is_causal):
    """Assert that fp32's relative errors against fp64 are small: due to rounding, not to lower precision."""
    actual = results(function, q, k, v, do, is_causal)
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
        attention_errors(results(implementation, *inputs, is_causal), exact)
        for implementation in (function, _efficient_attention)
    )
    assert (errors <= factor * torchs).all(), (errors / torchs).tolist()


def _efficient_attention(q, k, v, is_causal):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, is_causal=is_causal)


# n_queries, n_keys, is_causal, window: one tile and many, queries that see nothing, a window wider than all keys.
MASKS = [
    (70, 113, "bottom_right", None),
    (113, 70, "bottom_right", None),
    (1, 150, "bottom_right", None),
    (90, 90, "bottom_right", None),
    (130, 130, True, 1),
    (130, 150, True, 40),
    (150, 90, True, 7),
    (90, 150, "bottom_right", 33),
    (150, 90, "bottom_right", 64),
    (120, 130, False, 1),
    (150, 100, False, 29),
    (100, 150, False, 50),
    (60, 60, True, 1000),
]


def seen_by_formula(n_queries, n_keys, is_causal, window):
    """Return which query sees which key, by definition."""
    positions = torch.arange(n_queries)[:, None] + (n_keys - n_queries if is_causal == "bottom_right" else 0)
    keys = torch.arange(n_keys)[None, :]
    seen = torch.ones(n_queries, n_keys, dtype=torch.bool)
    if is_causal:
        seen &= keys <= positions
    if window is not None:
        seen &= (positions - keys).abs() < window
    return seen


def by_formula(q, k, v, is_causal=False, scale=None, enable_gqa=False, window=None):
    """Return output and log-sum-exp, computed in the inputs' dtype with every score in memory."""
    if enable_gqa:
        k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    seen = seen_by_formula(q.shape[-2], k.shape[-2], is_causal, window).to(q.device)
    scores = scores.masked_fill(~seen, -math.inf)
    weights = torch.where(seen.any(-1, keepdim=True), torch.softmax(scores, -1), 0)
    return weights @ v, scores.logsumexp(-1)


def inputs_of(n_queries, n_keys, head_dim=16, heads=2, kv_heads=None, dtype=torch.float32, device="cpu"):
    """Draw `random_inputs` with a batch of one."""
    return random_inputs((1, heads, n_queries, head_dim), n_keys, dtype, device, kv_heads=kv_heads)


def assert_as_exact_as_the_formula(function, *inputs, of_exact=0.0, **arguments):
    """Assert that errors against float64 are at most twice those of the formula in the inputs' dtype.

    of_exact: an extra allowance, as a fraction of the exact result's L2 norm.
    """
    formula = lambda *given, **those: by_formula(*given, **those)[0]  # noqa: E731
    exact = results(formula, *(tensor.double() for tensor in inputs), **arguments)
    plain = results(formula, *inputs, **arguments)
    found = results(function, *inputs, **arguments)
    # With one key its weight is 1 and the score gradients vanish except for rounding, which scales with o.
    vanishing = (2 * torch.finfo(inputs[0].dtype).eps + of_exact) * exact[0].norm()
    for name, a, b, e in zip(("o", "dq", "dk", "dv"), found, plain, exact, strict=True):
        assert a.dtype == inputs[0].dtype
        allowed = 2 * (b.double() - e).norm() + vanishing + of_exact * e.norm()
        assert (a.double() - e).norm() <= allowed, (name, (a.double() - e).norm(), (b.double() - e).norm())
