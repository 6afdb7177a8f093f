"""Needs a package that nobody has."""

from einops_that_nobody_has import rearrange  # noqa: F401


def attention(q, k, v, is_causal):
    return q
