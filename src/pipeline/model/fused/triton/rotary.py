"""Rotary positions in Triton: heads in any layout, results in contiguous rows of tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.model.fused.plain import check_alike

NUMBERS_PER_WARP = 512  # of a token's queries


@triton.jit
def rotary_kernel(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out_ptr, k_out_ptr, seq_len,
    stride_qb, stride_qt, stride_qh, stride_qc, stride_kb, stride_kt, stride_kh, stride_kc,
    SIGN: tl.constexpr, Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_Q_HEADS: tl.constexpr, BLOCK_K_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token's query and key by its position's angles, or back (SIGN -1).

    Heads and HALF (head_dim / 2) are constants so that loads and stores are 16 bytes wide where possible.
    """
    batch, token = (tl.program_id(0) // seq_len).to(tl.int64), (tl.program_id(0) % seq_len).to(tl.int64)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    cos = tl.load(cos_ptr + token * HALF + column, mask=column < HALF, other=0.0)
    sin = SIGN * tl.load(sin_ptr + token * HALF + column, mask=column < HALF, other=0.0)
    q_ptr += batch * stride_qb + token * stride_qt
    k_ptr += batch * stride_kb + token * stride_kt
    q_out_ptr += (batch * seq_len + token) * (2 * HALF * Q_HEADS)
    k_out_ptr += (batch * seq_len + token) * (2 * HALF * K_HEADS)
    _rotate_heads(q_ptr, stride_qh, stride_qc, cos, sin, q_out_ptr, Q_HEADS, HALF, BLOCK_Q_HEADS, BLOCK_HALF)
    _rotate_heads(k_ptr, stride_kh, stride_kc, cos, sin, k_out_ptr, K_HEADS, HALF, BLOCK_K_HEADS, BLOCK_HALF)


@triton.jit
def _rotate_heads(
    x_ptr, stride_head, stride_column, cos, sin, out_ptr, HEADS: tl.constexpr, HALF: tl.constexpr,
    BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    head, column = tl.arange(0, BLOCK_HEADS)[:, None], tl.arange(0, BLOCK_HALF)[None, :]
    exists = (head < HEADS) & (column < HALF)
    places = x_ptr + head.to(tl.int64) * stride_head + column * stride_column
    first = tl.load(places, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(places + HALF * stride_column, mask=exists, other=0.0).to(tl.float32)
    out_places = out_ptr + head * (2 * HALF) + column
    tl.store(out_places, first * cos - second * sin, mask=exists)
    tl.store(out_places + HALF, first * sin + second * cos, mask=exists)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> tuple[Tensor, Tensor]:
    """Rotate each pair (i, i + head_dim / 2) of q and k by its position's angle, or back by it.

    Shapes: q and k are (batch, seq_len, heads, head_dim), with any strides and heads of their own; the results have
    their shapes, contiguous; cos and sin are (seq_len or more, head_dim / 2), contiguous, fp32. Raises ValueError if q
    and k differ in more than heads.
    """
    check_alike(q, k)
    batch, seq_len, q_heads, head_dim = q.shape
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    sizes = {"Q_HEADS": q_heads, "K_HEADS": k.shape[2], "HALF": head_dim // 2}
    blocks = {f"BLOCK_{name}": triton.next_power_of_2(size) for name, size in sizes.items()}
    options = {"SIGN": -1 if back else 1, "num_warps": _warps(q_heads * head_dim)}
    rotary_kernel[(batch * seq_len,)](
        q, k, cos, sin, q_out, k_out, seq_len, *q.stride(), *k.stride(), **sizes, **blocks, **options
    )
    return q_out, k_out


def _warps(numbers: int) -> int:
    """Return the largest power of two, up to 8, of warps with at least NUMBERS_PER_WARP each; 1 if they are fewer."""
    return min(8, 1 << max(1, numbers // NUMBERS_PER_WARP).bit_length() - 1)
