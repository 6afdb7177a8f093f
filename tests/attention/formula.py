"""Attention by its formula, with every score in memory: what `flash_attention` must compute, whatever it is asked."""

import math

import torch

# n_queries, n_keys, is_causal, window: over one tile and many, queries that see nothing, a window wider than all keys.
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
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads, n_queries, head_dim), *[(1, kv_heads or heads, n_keys, head_dim)] * 2]
    q, k, v, do = (torch.randn(shape, generator=generator) for shape in (*shapes, shapes[0]))
    return [tensor.to(device=device, dtype=dtype) for tensor in (q, k, v, do)]


def results(function, q, k, v, do, **arguments):
    """Return the output and the gradients of q, k and v."""
    inputs = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    output = function(*inputs, **arguments)
    return [output.detach(), *torch.autograd.grad(output, inputs, do)]


def assert_as_exact_as_the_formula(function, *inputs, of_exact=0.0, **arguments):
    """Assert that errors against float64 are at most twice those of the formula in the inputs' dtype.

    of_exact: what else is allowed, of the exact numbers' L2 norm.
    """
    formula = lambda *given, **those: by_formula(*given, **those)[0]  # noqa: E731
    exact = results(formula, *(tensor.double() for tensor in inputs), **arguments)
    plain = results(formula, *inputs, **arguments)
    found = results(function, *inputs, **arguments)
    # Of one key the weight is 1 and the gradients of scores vanish, but for rounding: what is left scales with o.
    vanishing = (2 * torch.finfo(inputs[0].dtype).eps + of_exact) * exact[0].norm()
    for name, a, b, e in zip(("o", "dq", "dk", "dv"), found, plain, exact, strict=True):
        assert a.dtype == inputs[0].dtype
        allowed = 2 * (b.double() - e).norm() + vanishing + of_exact * e.norm()
        assert (a.double() - e).norm() <= allowed, (name, (a.double() - e).norm(), (b.double() - e).norm())
