"""Prepare launches of the kernels that multiply fp32 in parts, with their arguments; this requires Gluon."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.direct_launch import Launch, compile_launch, heads_per_kv
from pipeline.attention.triton.gluon.launches import OPTIONS, programs_and_sizes, work_by_keys, work_by_queries
from pipeline.attention.triton.gluon.parts.forward import hopper_parts_forward_kernel
from pipeline.attention.triton.gluon.parts.key_value import hopper_parts_key_value_kernel
from pipeline.attention.triton.gluon.parts.query import hopper_parts_query_kernel
from pipeline.attention.triton.gluon.parts.tiles import PartsForwardTiles, PartsKeyValueTiles, PartsQueryTiles
from pipeline.attention.triton.gpu import gpu_of
from pipeline.attention.triton.mask import CAUSAL
from pipeline.attention.triton.problem import Problem
from pipeline.attention.triton.tiles import tile_width

FP32, PART = torch.float32, torch.bfloat16


def forward_launch(problem: Problem, tiles: PartsForwardTiles) -> Launch:
    """Prepare the forward kernel; its launch takes the parts of q, k and v, output and LSE."""
    return _by_queries(hopper_parts_forward_kernel, problem, tiles, [*[PART] * 3, *[FP32] * 2], [problem.scale_log2])


def key_value_launch(problem: Problem, tiles: PartsKeyValueTiles) -> Launch:
    """Prepare the kernel for dk and dv; its launch takes parts of q, k, v and do, lse_log2, delta, None, dk and dv."""
    q, k = problem.q, problem.k
    return _launch(
        hopper_parts_key_value_kernel,
        problem,
        k,
        work_by_keys(q, k, problem.band == CAUSAL, tiles),
        [*[PART] * 4, *[FP32] * 2, None, *[FP32] * 2],
        [problem.scale, problem.scale_log2],
        key_value_constants(tiles, problem.band == CAUSAL, heads_per_kv(q, k), q.shape[-1]),
    )


def query_launch(problem: Problem, tiles: PartsQueryTiles) -> Launch:
    """Prepare the kernel for dq; its launch takes the parts of q, k, v and do, lse_log2, delta and dq."""
    dtypes = [*[PART] * 4, *[FP32] * 3]
    return _by_queries(hopper_parts_query_kernel, problem, tiles, dtypes, [problem.scale, problem.scale_log2])


def _by_queries(
    kernel: Any,
    problem: Problem,
    tiles: PartsForwardTiles | PartsQueryTiles,
    dtypes: Sequence[torch.dtype | None],
    scales: list[float],
) -> Launch:
    """Prepare a kernel whose items of work are tiles of queries."""
    q, k, is_causal = problem.q, problem.k, problem.band == CAUSAL
    constants = constants_by_queries(tiles, is_causal, heads_per_kv(q, k), q.shape[-1])
    return _launch(kernel, problem, q, work_by_queries(q, k, is_causal, tiles), dtypes, scales, constants)


def _launch(
    kernel: Any,
    problem: Problem,
    cut: Traits,
    work: np.ndarray,
    dtypes: Sequence[torch.dtype | None],
    scales: list[float],
    constants: dict[str, int | bool],
) -> Launch:
    """Prepare a kernel; cut: q or k, whichever is cut into tiles; work: of each tile of one of its matrices."""
    programs, matrices = gpu_of(cut.device).multiprocessors, math.prod(cut.shape[:-2])
    n_programs, (_heads, *numbers) = programs_and_sizes(problem.q, problem.k, matrices, work, programs)
    return compile_launch(kernel, n_programs, dtypes, [*numbers, *scales], constants, OPTIONS)


def constants_by_queries(
    tiles: PartsForwardTiles | PartsQueryTiles, is_causal: bool, per_kv: int, head_dim: int
) -> dict[str, int | bool]:
    """Return the compile-time arguments of the forward kernel or that for dq; per_kv: query heads per key head."""
    return {**_shared(tiles.registers, is_causal, per_kv, head_dim), "BLOCK_KEYS": tiles.block_keys}


def key_value_constants(
    tiles: PartsKeyValueTiles, is_causal: bool, per_kv: int, head_dim: int
) -> dict[str, int | bool]:
    """Return the compile-time arguments of the kernel for dk and dv."""
    return {**_shared(tiles.registers, is_causal, per_kv, head_dim), "BLOCK_QUERIES": tiles.block_queries}


def _shared(registers: int, is_causal: bool, per_kv: int, head_dim: int) -> dict[str, int | bool]:
    return {
        "CAUSAL": is_causal,
        "HEADS_PER_KV": per_kv,
        "HEAD_DIM": head_dim,
        "WIDTH": tile_width(head_dim),
        "REGISTERS": registers,
    }
