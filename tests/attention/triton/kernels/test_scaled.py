"""Sums of dq as the Hopper backward kernel leaves them, put in order, in Triton's interpreter."""

import math

import pytest
import torch

from pipeline.attention.triton.kernels.scaled import unpacked_kernel

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("n_queries", "rows", "head_dim", "width"),
    [(130, 256, 64, 64), (64, 64, 72, 80), (70, 128, 96, 96), (100, 128, 104, 128)],
)
def test_sums_are_scaled_and_put_in_order(n_queries, rows, head_dim, width):
    heads = 3
    dq = torch.randn(heads, rows, width, device=DEVICE)
    # Warps, halves of their rows, rows; eights of columns, pairs, columns of a pair: as wgmma gives 64 rows.
    parts = dq.view(heads, rows // 64, 4, 2, 8, width // 8, 4, 2)
    sums = parts.permute(0, 1, 5, 2, 4, 6, 3, 7).contiguous()
    found = torch.full((heads, n_queries, head_dim), math.nan, dtype=torch.float32, device=DEVICE)
    grid = (heads * rows // 64 * -(-head_dim // 64),)
    unpacked_kernel[grid](sums, found, n_queries, rows, 0.5, HEAD_DIM=head_dim, DQ_WIDTH=width)
    assert torch.equal(found, 0.5 * dq[:, :n_queries, :head_dim])
