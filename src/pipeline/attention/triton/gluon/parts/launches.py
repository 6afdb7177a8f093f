"""Prepare launches of the kernels that multiply fp32 in parts, with their arguments; this requires Gluon."""

import torch

from pipeline.attention.triton.direct_launch import Launch, heads_per_kv
from pipeline.attention.triton.gluon.launches import (
    Specialization,
    launch_of,
    shared_constants,
    work_by_keys,
    work_by_queries,
)
from pipeline.attention.triton.gluon.parts.forward import hopper_parts_forward_kernel
from pipeline.attention.triton.gluon.parts.key_value import hopper_parts_key_value_kernel
from pipeline.attention.triton.gluon.parts.query import hopper_parts_query_kernel
from pipeline.attention.triton.gluon.parts.tiles import PartsForwardTiles, PartsKeyValueTiles, PartsQueryTiles
from pipeline.attention.triton.mask import CAUSAL
from pipeline.attention.triton.problem import Problem

FP32, PART = torch.float32, torch.bfloat16


def forward_launch(problem: Problem, tiles: PartsForwardTiles) -> Launch:
    """Prepare the forward kernel; its launch takes the parts of q, k and v, output and LSE."""
    q, k, is_causal = problem.q, problem.k, problem.band == CAUSAL
    kernel = forward_kernel(tiles, is_causal, heads_per_kv(q, k), q.shape[-1])
    work = work_by_queries(q, k, is_causal, tiles)
    return launch_of(kernel, problem, q, work, [*[PART] * 3, *[FP32] * 2], [problem.scale_log2])


def key_value_launch(problem: Problem, tiles: PartsKeyValueTiles) -> Launch:
    """Prepare the kernel for dk and dv; its launch takes parts of q, k, v and do, lse_log2, delta, None, dk and dv."""
    q, k, is_causal = problem.q, problem.k, problem.band == CAUSAL
    kernel = key_value_kernel(tiles, is_causal, heads_per_kv(q, k), q.shape[-1])
    dtypes = [*[PART] * 4, *[FP32] * 2, None, *[FP32] * 2]
    work = work_by_keys(q, k, is_causal, tiles)
    return launch_of(kernel, problem, k, work, dtypes, [problem.scale, problem.scale_log2])


def query_launch(problem: Problem, tiles: PartsQueryTiles) -> Launch:
    """Prepare the kernel for dq; its launch takes the parts of q, k, v and do, lse_log2, delta and dq."""
    q, k, is_causal = problem.q, problem.k, problem.band == CAUSAL
    kernel = query_kernel(tiles, is_causal, heads_per_kv(q, k), q.shape[-1])
    work = work_by_queries(q, k, is_causal, tiles)
    return launch_of(kernel, problem, q, work, [*[PART] * 4, *[FP32] * 3], [problem.scale, problem.scale_log2])


def forward_kernel(tiles: PartsForwardTiles, is_causal: bool, per_kv: int, head_dim: int) -> Specialization:
    """Return the forward kernel; per_kv: query heads per key head."""
    own = {"BLOCK_KEYS": tiles.block_keys, "REGISTERS": tiles.registers}
    return Specialization(hopper_parts_forward_kernel, shared_constants(is_causal, per_kv, head_dim) | own)


def key_value_kernel(tiles: PartsKeyValueTiles, is_causal: bool, per_kv: int, head_dim: int) -> Specialization:
    """Return the kernel for dk and dv."""
    own = {"BLOCK_QUERIES": tiles.block_queries, "REGISTERS": tiles.registers}
    return Specialization(hopper_parts_key_value_kernel, shared_constants(is_causal, per_kv, head_dim) | own)


def query_kernel(tiles: PartsQueryTiles, is_causal: bool, per_kv: int, head_dim: int) -> Specialization:
    """Return the kernel for dq."""
    own = {"BLOCK_KEYS": tiles.block_keys, "REGISTERS": tiles.registers}
    return Specialization(hopper_parts_query_kernel, shared_constants(is_causal, per_kv, head_dim) | own)
