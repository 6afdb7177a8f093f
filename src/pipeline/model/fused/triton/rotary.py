"""Rotary positions in Triton: heads in any layout, results in contiguous rows of tokens."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rotary_kernel(
    x_ptr, cos_ptr, sin_ptr, out_ptr, seq_len, stride_batch, stride_token, stride_head, stride_column,
    SIGN: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
):  # fmt: skip
    """Rotate all heads of one token by its position's angles, or back (SIGN -1).

    HEADS and HALF (head_dim / 2) are constants so that loads and stores are 16 bytes wide where possible.
    """
    batch, token = (tl.program_id(0) // seq_len).to(tl.int64), (tl.program_id(0) % seq_len).to(tl.int64)
    head, column = tl.arange(0, BLOCK_HEADS)[:, None], tl.arange(0, BLOCK_HALF)[None, :]
    exists = (head < HEADS) & (column < HALF)
    start = x_ptr + batch * stride_batch + token * stride_token
    x_places = start + head.to(tl.int64) * stride_head + column * stride_column
    first = tl.load(x_places, mask=exists, other=0.0).to(tl.float32)
    second = tl.load(x_places + HALF * stride_column, mask=exists, other=0.0).to(tl.float32)
    angle = token * HALF + column
    cos = tl.load(cos_ptr + angle, mask=column < HALF, other=0.0)
    sin = SIGN * tl.load(sin_ptr + angle, mask=column < HALF, other=0.0)
    out_places = out_ptr + (batch * seq_len + token) * (2 * HALF * HEADS) + head * (2 * HALF) + column
    tl.store(out_places, first * cos - second * sin, mask=exists)
    tl.store(out_places + HALF, first * sin + second * cos, mask=exists)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, back: bool = False) -> Tensor:
    """Rotate each pair (i, i + head_dim / 2) by its position's angle, or back by it.

    Shapes: x is (batch, seq_len, heads, head_dim), with any strides; the result has x's shape, contiguous; cos and
    sin are (seq_len or more, head_dim / 2), contiguous, fp32.
    """
    batch, seq_len, heads, head_dim = x.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    blocks = {"BLOCK_HEADS": triton.next_power_of_2(heads), "BLOCK_HALF": triton.next_power_of_2(head_dim // 2)}
    rotary_kernel[(batch * seq_len,)](
        x, cos, sin, out, seq_len, *x.stride(), SIGN=-1 if back else 1, HEADS=heads, HALF=head_dim // 2, **blocks
    )
    return out
