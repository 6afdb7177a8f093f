"""Plain attention: the formula, one PyTorch operation at a time."""

import math

import torch
from torch import Tensor

from pipeline.ranges import span


def eager_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute softmax(q kᵀ / √head_dim) v with the whole score matrix in memory.

    Shapes: q and the result are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
    Causal: query i attends to key j if j <= i, whether there are more keys than queries or fewer.

    Of the n_queries × n_keys tensors, only the softmax output is kept for the backward pass, under autocast with its
    low-precision copy, which the last product reads. Formula: Vaswani et al. 2017, equation 1.
    """
    with span("attention scores"):
        # Scaling the queries instead of the scores touches head_dim numbers per query, not n_keys.
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
    if is_causal:
        with span("mask"):
            scores += _causal_bias(scores)  # in place: a product's backward pass does not need its output
    with span("softmax"):
        weights = torch.softmax(scores, dim=-1)
    with span("final matmul"):
        return weights @ v


def _causal_bias(scores: Tensor) -> Tensor:
    """Return the (n_queries, n_keys) bias that is -inf at future keys and 0 elsewhere.

    Adding it saves memory: a sum keeps nothing for the backward pass, while `masked_fill` keeps its mask in every
    layer.
    """
    return scores.new_full(scores.shape[-2:], -math.inf).triu_(diagonal=1)
