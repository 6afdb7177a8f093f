"""Prepare launches of the Gluon kernels, with their arguments; importing this module requires Gluon."""

import math
from typing import Any, Protocol

import numpy as np
import torch

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.direct_launch import (
    OVERLAPPED,
    Launch,
    compile_launch,
    heads,
    heads_per_kv,
    strides,
)
from pipeline.attention.triton.gluon.backward import hopper_backward_kernel
from pipeline.attention.triton.gluon.forward import hopper_forward_kernel
from pipeline.attention.triton.gluon.forward_narrow import hopper_narrow_forward_kernel
from pipeline.attention.triton.gluon.key_value_wide import hopper_wide_key_value_kernel
from pipeline.attention.triton.gluon.query_wide import hopper_wide_query_kernel
from pipeline.attention.triton.gluon.schedule import heads_together, is_balanced_in_pairs
from pipeline.attention.triton.gluon.tiles import (
    BackwardTiles,
    ForwardTiles,
    KeyValueTiles,
    NarrowForwardTiles,
    QueryTiles,
)
from pipeline.attention.triton.gpu import gpu_of
from pipeline.attention.triton.mask import CAUSAL
from pipeline.attention.triton.problem import Problem
from pipeline.attention.triton.tiles import tile_width

OPTIONS = {
    "num_warps": 4,  # of the first warpgroup; the kernels add more
    **OVERLAPPED,
}
# Cost of beginning and ending a tile, in blocks.
TILE_OVERHEAD = 1


class Blocks(Protocol):
    """Tiles of any kernel here."""

    @property
    def block_queries(self) -> int:
        """Count the queries of a tile or block."""

    @property
    def block_keys(self) -> int:
        """Count the keys of a tile or block."""


def forward_launch(problem: Problem, tiles: ForwardTiles | NarrowForwardTiles) -> Launch:
    """Prepare the forward kernel of these tiles; its launch takes q, k, v, output and LSE."""
    q, k, v, is_causal = problem.q, problem.k, problem.v, problem.band == CAUSAL
    work = work_by_queries(q, k, is_causal, tiles)
    programs = gpu_of(q.device).multiprocessors
    if isinstance(tiles, NarrowForwardTiles):
        programs *= tiles.programs_per_sm
    n_programs, sizes = programs_and_sizes(q, k, math.prod(q.shape[:-2]), work, programs)
    return compile_launch(
        forward_kernel(tiles),
        n_programs,
        [*[q.dtype] * 4, torch.float32],
        [*(stride for given in (q, k, v) for stride in _strides(given)), *sizes, problem.scale_log2],
        forward_constants(tiles, is_causal, heads_per_kv(q, k), q.shape[-1]),
        forward_options(tiles),
    )


def backward_launch(
    problem: Problem, q: Traits, k: Traits, v: Traits, do: Traits, tiles: BackwardTiles | KeyValueTiles
) -> Launch:
    """Prepare the backward kernel; its launch takes q, k, v, do, LSE, delta, dq_sum, dk and dv.

    The layout of q, k and v may differ from the problem's by now. If dq has its own kernel, dq_sum is None and LSE and
    delta are in fp32, otherwise these are in bf16 parts.
    """
    is_causal = problem.band == CAUSAL
    number, dq_sum = (torch.float32, None) if tiles.query else (torch.bfloat16, torch.float32)
    work = work_by_keys(q, k, is_causal, tiles)
    programs, matrices = gpu_of(q.device).multiprocessors, math.prod(k.shape[:-2])
    n_programs, sizes = programs_and_sizes(q, k, matrices, work, programs)
    in_pairs = is_causal and heads_per_kv(q, k) > 1 and is_balanced_in_pairs(matrices, work, programs)
    return compile_launch(
        backward_kernel(tiles),
        n_programs,
        [*[q.dtype] * 4, number, number, dq_sum, q.dtype, q.dtype],
        [*(stride for given in (q, k, v, do) for stride in _strides(given)), *sizes, problem.scale, problem.scale_log2],
        backward_constants(
            tiles, is_causal, heads_per_kv(q, k), q.shape[-1], k.shape[-2] % tiles.block_keys != 0, in_pairs
        ),
        OPTIONS,
    )


def query_launch(problem: Problem, q: Traits, k: Traits, v: Traits, do: Traits, tiles: QueryTiles) -> Launch:
    """Prepare the kernel for dq alone; its launch takes q, k, v, do, lse_log2, delta and dq."""
    is_causal = problem.band == CAUSAL
    work = work_by_queries(q, k, is_causal, tiles)
    n_programs, sizes = programs_and_sizes(q, k, math.prod(q.shape[:-2]), work, gpu_of(q.device).multiprocessors)
    return compile_launch(
        hopper_wide_query_kernel,
        n_programs,
        [*[q.dtype] * 4, *[torch.float32] * 2, q.dtype],
        [*(stride for given in (q, k, v, do) for stride in _strides(given)), *sizes, problem.scale, problem.scale_log2],
        query_constants(tiles, is_causal, heads_per_kv(q, k), q.shape[-1]),
        OPTIONS,
    )


def work_by_keys(q: Traits, k: Traits, is_causal: bool, tiles: Blocks) -> np.ndarray:
    """Return the work of each tile of keys, most first: the blocks of queries it goes through plus TILE_OVERHEAD."""
    first_keys = np.arange(0, k.shape[-2], tiles.block_keys)
    queries_seen = np.full(len(first_keys), q.shape[-2])
    if is_causal:
        queries_seen = np.maximum(queries_seen - first_keys, 0)
    return -(-queries_seen // tiles.block_queries) * heads_per_kv(q, k) + TILE_OVERHEAD


def work_by_queries(q: Traits, k: Traits, is_causal: bool, tiles: Blocks) -> np.ndarray:
    """Return the work of each tile of queries, most first: the blocks of keys it goes through plus TILE_OVERHEAD."""
    first_queries = np.arange(0, q.shape[-2], tiles.block_queries)
    keys_seen = np.full(len(first_queries), k.shape[-2])
    if is_causal:
        keys_seen = np.minimum(keys_seen, first_queries[::-1] + tiles.block_queries)
    return -(-keys_seen // tiles.block_keys) + TILE_OVERHEAD


def programs_and_sizes(
    q: Traits, k: Traits, matrices: int, work: np.ndarray, programs: int
) -> tuple[int, tuple[int, ...]]:
    """Return the number of programs to launch and the kernels' size arguments.

    matrices: how many are cut into tiles, of queries or of keys; work: per tile of a matrix; programs: how many fit on
    the GPU at a time.
    """
    programs = min(programs, matrices * len(work))
    together = heads_together(matrices, work, programs)
    return programs, (heads(q), matrices, q.shape[-2], k.shape[-2], len(work), together)


def forward_kernel(tiles: ForwardTiles | NarrowForwardTiles) -> Any:
    """Return the forward kernel for these tiles."""
    return hopper_narrow_forward_kernel if isinstance(tiles, NarrowForwardTiles) else hopper_forward_kernel


def forward_options(tiles: ForwardTiles | NarrowForwardTiles) -> dict[str, int]:
    """Return Triton's options for the forward kernel; those with several warpgroups limit registers themselves."""
    return {**OPTIONS, "maxnreg": tiles.registers} if isinstance(tiles, NarrowForwardTiles) else OPTIONS


def forward_constants(
    tiles: ForwardTiles | NarrowForwardTiles, is_causal: bool, per_kv: int, head_dim: int
) -> dict[str, int | bool]:
    """Return the compile-time arguments of the forward kernel for these tiles; per_kv: query heads per key head."""
    shared = {
        "CAUSAL": is_causal,
        "HEADS_PER_KV": per_kv,
        "HEAD_DIM": head_dim,
        "WIDTH": tile_width(head_dim),
        "BLOCK_KEYS": tiles.block_keys,
    }
    if isinstance(tiles, NarrowForwardTiles):
        return shared
    return {
        **shared,
        "STAGES": tiles.stages,
        "GROUPS": tiles.groups,
        "REGISTERS": tiles.registers,
        "O_IN_Q": tiles.o_in_q,
    }


def backward_kernel(tiles: BackwardTiles | KeyValueTiles) -> Any:
    """Return the backward kernel for these tiles."""
    return hopper_wide_key_value_kernel if isinstance(tiles, KeyValueTiles) else hopper_backward_kernel


def backward_constants(
    tiles: BackwardTiles | KeyValueTiles,
    is_causal: bool,
    per_kv: int,
    head_dim: int,
    has_part_tile: bool,
    in_pairs: bool = False,
) -> dict[str, int | bool]:
    """Return the backward kernel's compile-time arguments.

    has_part_tile: the last tile extends past the last key, which a kernel that sums dq must mask; in_pairs: see
    `pieces.item_of`.
    """
    shared = {
        "CAUSAL": is_causal,
        "HEADS_PER_KV": per_kv,
        "HEAD_DIM": head_dim,
        "REGISTERS": tiles.registers,
    }
    if isinstance(tiles, KeyValueTiles):
        return {**shared, "WIDTH": tile_width(head_dim), "STAGES": tiles.stages}
    # Without the mask, ptxas makes every wgmma wait for the one before (Triton 3.6, head_dim 40 to 64).
    masks_keys = has_part_tile or (is_causal and tiles.width + tiles.tail == 64)
    return {
        **shared,
        "MASK_KEYS": masks_keys,
        "WIDTH": tiles.width,
        "TAIL": tiles.tail,
        "BLOCK_QUERIES": tiles.block_queries,
        "IN_PAIRS": in_pairs,
    }


def query_constants(tiles: QueryTiles, is_causal: bool, per_kv: int, head_dim: int) -> dict[str, int | bool]:
    """Return the compile-time arguments of the kernel for dq."""
    return {
        "CAUSAL": is_causal,
        "HEADS_PER_KV": per_kv,
        "HEAD_DIM": head_dim,
        "WIDTH": tile_width(head_dim),
        "REGISTERS": tiles.registers,
    }


def _strides(given: Traits) -> tuple[int, int, int]:
    """Return the strides of batch, head and row; a 0, of a dimension of size 1, is replaced by the row's stride."""
    batch, head, row = strides(given)
    return batch or row, head or row, row
