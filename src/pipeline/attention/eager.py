"""Attention by its formula, one PyTorch operation after the other."""

import math

import torch
from torch import Tensor

from pipeline.ranges import span


def eager_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute softmax(q kᵀ / √head_dim) v with the whole score matrix in memory.

    Shapes: q and the result are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
    Causal: query i attends to key j where j <= i, also where there are more keys than queries or fewer.

    Of size n_queries × n_keys, only the softmax's output is kept for the backward pass, under autocast also
    the low-precision copy that the last product reads. Formula: Vaswani et al. 2017, equation 1.
    """
    with span("attention scores"):
        # The queries are scaled rather than the scores: head_dim numbers a query instead of n_keys.
        scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)
        if is_causal:
            scores += _causal_bias(scores)  # in place: a product does not need its output again
    with span("softmax"):
        weights = torch.softmax(scores, dim=-1)
    with span("final matmul"):
        return weights @ v


def _causal_bias(scores: Tensor) -> Tensor:
    """Make the (n_queries, n_keys) bias that is -inf at future keys and 0 elsewhere.

    It is added because a sum keeps neither term for the backward pass, where `masked_fill` keeps its mask in
    every layer.
    """
    return scores.new_full(scores.shape[-2:], -math.inf).triu_(diagonal=1)
