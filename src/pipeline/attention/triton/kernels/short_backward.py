"""The whole backward pass of short sequences as one Triton kernel."""

import triton
import triton.language as tl

from pipeline.attention.triton.kernels.blocks import wait_for_kernel_before
from pipeline.attention.triton.kernels.key_value import key_value_program
from pipeline.attention.triton.kernels.query import query_program


@triton.jit
def short_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, o_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
    stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale, scale_log2,
    query_programs, HAS_START: tl.constexpr, HAS_END: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_QUERIES: tl.constexpr, BLOCK_KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the whole backward pass in one launch: the first programs take tiles of queries, the others of keys.

    Each computes the δ that it needs. That is more work than computing it once, but on short sequences it costs less
    than another launch.
    """
    wait_for_kernel_before()
    program = tl.program_id(0)
    if program < query_programs:
        query_program(
            program, 0, n_keys, 0, q_ptr, k_ptr, v_ptr, do_ptr, o_ptr, lse_ptr, None, dq_ptr,
            stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
            stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale,
            scale_log2, HAS_START, HAS_END, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, False, PRECISION,
        )  # fmt: skip
    else:
        key_value_program(
            program - query_programs, 0, n_queries, 0,
            q_ptr, k_ptr, v_ptr, do_ptr, o_ptr, lse_ptr, None, None, dk_ptr, dv_ptr,
            stride_qb, stride_qh, stride_q, stride_kb, stride_kh, stride_k, stride_vb, stride_vh, stride_v,
            stride_dob, stride_doh, stride_do, heads, heads_per_kv, n_queries, n_keys, band_start, band_end, scale,
            scale_log2, HAS_START, HAS_END, False, HEAD_DIM, BLOCK_QUERIES, BLOCK_KEYS, False, False, False, PRECISION,
        )  # fmt: skip
