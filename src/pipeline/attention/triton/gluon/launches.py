"""Prepare launches of the Gluon kernels, with their arguments; importing this module requires Gluon."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

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


class Specialization(NamedTuple):
    """A kernel, its compile-time arguments and Triton's options."""

    kernel: Any
    constants: dict[str, int | bool]
    options: dict[str, int] = OPTIONS


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
    return launch_of(
        forward_kernel(tiles, is_causal, heads_per_kv(q, k), q.shape[-1]),
        problem,
        q,
        work_by_queries(q, k, is_causal, tiles),
        [*[q.dtype] * 4, torch.float32],
        [problem.scale_log2],
        strided=(q, k, v),
        programs_per_sm=tiles.programs_per_sm,
    )


def backward_launch(problem: Problem, do: Traits, tiles: BackwardTiles | KeyValueTiles) -> Launch:
    """Prepare the backward kernel; its launch takes q, k, v, do, LSE, delta, dq_sum, dk and dv.

    If dq has its own kernel, dq_sum is None and LSE and delta are in fp32, otherwise these are in bf16 parts.
    """
    q, k, v, is_causal = problem.q, problem.k, problem.v, problem.band == CAUSAL
    number, dq_sum = (torch.float32, None) if tiles.query else (torch.bfloat16, torch.float32)
    work, per_kv = work_by_keys(q, k, is_causal, tiles), heads_per_kv(q, k)
    has_part_tile = k.shape[-2] % tiles.block_keys != 0
    programs = gpu_of(k.device).multiprocessors
    in_pairs = is_causal and per_kv > 1 and is_balanced_in_pairs(math.prod(k.shape[:-2]), work, programs)
    return launch_of(
        backward_kernel(tiles, is_causal, per_kv, q.shape[-1], has_part_tile, in_pairs),
        problem,
        k,
        work,
        [*[q.dtype] * 4, number, number, dq_sum, q.dtype, q.dtype],
        [problem.scale, problem.scale_log2],
        strided=(q, k, v, do),
    )


def query_launch(problem: Problem, do: Traits, tiles: QueryTiles) -> Launch:
    """Prepare the kernel for dq alone; its launch takes q, k, v, do, lse_log2, delta and dq."""
    q, k, v, is_causal = problem.q, problem.k, problem.v, problem.band == CAUSAL
    return launch_of(
        query_kernel(tiles, is_causal, heads_per_kv(q, k), q.shape[-1]),
        problem,
        q,
        work_by_queries(q, k, is_causal, tiles),
        [*[q.dtype] * 4, *[torch.float32] * 2, q.dtype],
        [problem.scale, problem.scale_log2],
        strided=(q, k, v, do),
    )


def launch_of(
    specialization: Specialization,
    problem: Problem,
    cut: Traits,
    work: np.ndarray,
    dtypes: Sequence[torch.dtype | None],
    scales: Sequence[float],
    strided: Sequence[Traits] = (),
    programs_per_sm: int = 1,
) -> Launch:
    """Prepare a kernel of persistent programs.

    cut: q or k, whichever is cut into tiles; work: of each tile of one of its matrices, most first; strided: the
    tensors whose strides the kernel takes, and with them the number of heads.
    """
    matrices = math.prod(cut.shape[:-2])
    programs = min(programs_per_sm * gpu_of(cut.device).multiprocessors, matrices * len(work))
    together = heads_together(matrices, work, programs)
    sizes = (matrices, problem.q.shape[-2], problem.k.shape[-2], len(work), together)
    layout = [*(stride for given in strided for stride in _strides(given)), heads(problem.q)] if strided else []
    kernel, constants, options = specialization
    return compile_launch(kernel, programs, dtypes, [*layout, *sizes, *scales], constants, options)


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


def forward_kernel(
    tiles: ForwardTiles | NarrowForwardTiles, is_causal: bool, per_kv: int, head_dim: int
) -> Specialization:
    """Return the forward kernel of these tiles; per_kv: query heads per key head."""
    shared = {**shared_constants(is_causal, per_kv, head_dim), "BLOCK_KEYS": tiles.block_keys}
    if isinstance(tiles, NarrowForwardTiles):
        return Specialization(hopper_narrow_forward_kernel, shared, {**OPTIONS, "maxnreg": tiles.registers})
    of_groups = {"GROUPS": tiles.groups, "REGISTERS": tiles.registers, "O_IN_Q": tiles.o_in_q, "STAGES": tiles.stages}
    return Specialization(hopper_forward_kernel, shared | of_groups)


def backward_kernel(
    tiles: BackwardTiles | KeyValueTiles,
    is_causal: bool,
    per_kv: int,
    head_dim: int,
    has_part_tile: bool,
    in_pairs: bool = False,
) -> Specialization:
    """Return the backward kernel of these tiles.

    has_part_tile: the last tile extends past the last key, which a kernel that sums dq must mask; in_pairs: see
    `pieces.item_of`.
    """
    shared = {**shared_constants(is_causal, per_kv, head_dim), "REGISTERS": tiles.registers}
    if isinstance(tiles, KeyValueTiles):
        return Specialization(hopper_wide_key_value_kernel, {**shared, "STAGES": tiles.stages})
    # Without the mask, ptxas makes every wgmma wait for the one before (Triton 3.6, head_dim 40 to 64).
    masks_keys = has_part_tile or (is_causal and tiles.width + tiles.tail == 64)
    of_tiles = {"WIDTH": tiles.width, "TAIL": tiles.tail, "BLOCK_QUERIES": tiles.block_queries}
    return Specialization(hopper_backward_kernel, {**shared, **of_tiles, "MASK_KEYS": masks_keys, "IN_PAIRS": in_pairs})


def query_kernel(tiles: QueryTiles, is_causal: bool, per_kv: int, head_dim: int) -> Specialization:
    """Return the kernel for dq."""
    shared = shared_constants(is_causal, per_kv, head_dim)
    return Specialization(hopper_wide_query_kernel, {**shared, "REGISTERS": tiles.registers})


def shared_constants(is_causal: bool, per_kv: int, head_dim: int) -> dict[str, int | bool]:
    """Return the compile-time arguments of all kernels."""
    return {"CAUSAL": is_causal, "HEADS_PER_KV": per_kv, "HEAD_DIM": head_dim, "WIDTH": tile_width(head_dim)}


def _strides(given: Traits) -> tuple[int, int, int]:
    """Return the strides of batch, head and row; a 0, of a dimension of size 1, is replaced by the row's stride."""
    batch, head, row = strides(given)
    return batch or row, head or row, row
