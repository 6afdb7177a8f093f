"""Attention with PyTorch's own kernels."""

from torch import Tensor
from torch.nn import functional


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention with whichever kernel PyTorch chooses; under autocast in its dtype.

    Shapes: q and the output are (..., n_queries, head_dim), k and v are (..., n_keys, head_dim).
    """
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
