"""Attention by PyTorch's own kernels."""

from torch import Tensor
from torch.nn import functional


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention by whichever of its kernels PyTorch chooses; under autocast in its dtype.

    Shapes: q is (..., n_queries, head_dim), k and v are (..., n_keys, head_dim), the output is q's.
    """
    return functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
