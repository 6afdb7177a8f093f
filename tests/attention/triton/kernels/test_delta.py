"""δ and the log-sum-exp in parts, as the Hopper backward kernel reads them, in Triton's interpreter."""

import math

import torch

from pipeline.attention.triton.kernels.delta import PARTS_ROW, delta_kernel
from pipeline.attention.triton.kernels.parts import PARTS

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_parts_sum_to_the_negated_numbers_about_as_exactly_as_fp32():
    heads, n_queries, head_dim, scale = 2, 70, 64, 0.125
    o, do = (torch.randn(heads, n_queries, head_dim, device=DEVICE).bfloat16() for _ in range(2))
    lse = 1000 * torch.randn(heads, n_queries, device=DEVICE)
    shape = (heads, n_queries, PARTS_ROW.value)
    delta, lse_parts = (torch.full(shape, math.nan, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    delta_kernel[(heads * 2,)](
        o, do, lse, delta, lse_parts, None, n_queries * head_dim, n_queries * head_dim, head_dim, 1, n_queries,
        n_queries, scale, HEAD_DIM=head_dim, DQ_WIDTH=0, IN_PARTS=True,
    )  # fmt: skip
    expected = {"delta": -(o.double() * do.double()).sum(-1), "lse": -lse.double() / scale}
    for parts, numbers in zip((delta, lse_parts), expected.values(), strict=True):
        assert not parts[..., PARTS.value :].any()
        torch.testing.assert_close(parts.double().sum(-1), numbers, rtol=2**-21, atol=2**-20)
