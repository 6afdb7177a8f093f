"""Plan a backward pass of the Triton attention from its inputs' traits: grids, chunks, kernels."""

import functools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.backward_ends import (
    WorkingMemory,
    delta_launch,
    padded_numbers,
    scaled_launch,
    unpacked_launch,
    working_memory_of,
)
from pipeline.attention.triton.direct_launch import (
    ELEMENTWISE,
    Launch,
    band_bounds,
    band_constants,
    block_sizes,
    heads,
    heads_per_kv,
    like,
    precision,
    prepare_launch,
    strides,
    tiles_of,
    tma_can_load,
)
from pipeline.attention.triton.gluon.parts import tiles as parts_tiles
from pipeline.attention.triton.gluon.tiles import BackwardTiles, backward_tiles
from pipeline.attention.triton.gpu import gpu_of
from pipeline.attention.triton.in_parts import InParts, in_parts_of
from pipeline.attention.triton.kernel_sets import backward_kernels
from pipeline.attention.triton.kernels.chunks import ROWS_PER_PROGRAM, sum_kernel
from pipeline.attention.triton.kernels.delta import PARTS_ROW
from pipeline.attention.triton.kernels.key_value import key_value_kernel
from pipeline.attention.triton.kernels.query import query_kernel
from pipeline.attention.triton.kernels.short_backward import short_kernel
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, Layout, copies_of, strides_read
from pipeline.attention.triton.problem import PROBLEMS_KEPT, Problem
from pipeline.attention.triton.tile_tables import tables_for
from pipeline.attention.triton.tiles import IN_USE, BackwardConfig, Choices, TileConfig, tile_width
from pipeline.compat.triton_private import is_interpreted


@dataclass(frozen=True)
class ChunkedLaunch:
    """A kernel that computes gradients and, if it works on chunks, one that sums their results."""

    compute: Launch
    chunks: int
    add_up: Launch | None


@dataclass(frozen=True)
class BackwardPlan:
    """A backward pass: dq has its own kernel, or the kernel of dk and dv sums it and another scales it.

    copies: which of q, k, v and the output's gradient are read from copies, None if none is; like_dk_dv: template to
    allocate dk and dv from (`like`); in_parts: splits q, k, v and the output's gradient into bf16 parts, None if they
    are not split.
    """

    copies: tuple[bool, ...] | None
    memory: WorkingMemory
    delta: Launch
    key_value: ChunkedLaunch
    query: ChunkedLaunch | None
    scaled: Launch | None
    like_dk_dv: Tensor = field(compare=False)
    in_parts: InParts | None = None


@dataclass(frozen=True)
class ShortBackwardPlan:
    """A backward pass over short sequences: one kernel.

    copies: as in `BackwardPlan`; like_k: template to allocate dk and dv from (`like`).
    """

    copies: tuple[bool, ...] | None
    gradients: Launch
    like_k: Tensor = field(compare=False)


@dataclass(frozen=True)
class _Common:
    """What all kernels of a backward pass share: inputs, scalar and compile-time arguments, and choices."""

    problem: Problem
    do: Traits
    scalars: list[float]
    constants: dict[str, Any]
    choices: Choices

    def chunk_of(self, side: Traits, block: int, tiles: int) -> int:
        """Return the chunk length of a side that `tiles` tiles of the other side go through, `block` rows at a time."""
        if not self.problem.band.shows_first_key:
            return side.shape[-2]
        chunking = self.choices.backward_chunking(side.dtype)
        return self.choices.chunk_length(chunking, tiles, side.shape[-2], block, gpu_of(side.device).multiprocessors)


@functools.lru_cache(PROBLEMS_KEPT)
def backward_plan(
    problem: Problem, *layouts_now: Layout, choices: Choices = IN_USE, repeatable: bool = False
) -> BackwardPlan | ShortBackwardPlan:
    """Plan the backward pass of a problem that has had a forward pass.

    layouts_now: of q, k, v and the output's gradient; hooks on saved tensors, such as
    `torch.autograd.graph.save_on_cpu`, may have changed them. repeatable: make dq bitwise repeatable if plain kernels
    can.
    """
    tensors = (problem.q, problem.k, problem.v, problem.q)
    q, k, v, do = (
        given._replace(stride=strides_read(given.shape, layout))
        for given, layout in zip(tensors, layouts_now, strict=True)
    )
    problem, copies = replace(problem, q=q, k=k, v=v), copies_of(layouts_now)
    if choices.gluon and backward_kernels(problem, do, repeatable).name == "gluon":
        return (_from_parts if q.dtype == torch.float32 else _in_gluon)(copies, problem, do)
    lengths = [heads(q), heads_per_kv(q, k), q.shape[-2], k.shape[-2], *band_bounds(problem.band)]
    scalars = [*strides(q), *strides(k), *strides(v), *strides(do), *lengths, problem.scale, problem.scale_log2]
    constants = {**band_constants(problem.band), "HEAD_DIM": q.shape[-1], "PRECISION": precision(problem)}
    common = _Common(problem, do, scalars, constants, choices)
    config = choices.backward(q.dtype, q.shape[-1], k.shape[-2], tables_for(gpu_of(q.device)))
    short_programs = tiles_of(q, config.short.block_queries) + tiles_of(k, config.short.block_keys)
    if choices.is_short(q.dtype, q.shape[-2], k.shape[-2], short_programs / gpu_of(q.device).multiprocessors):
        return ShortBackwardPlan(copies, _short(config.short, common), like(k.shape, k.dtype, k.device))
    sums_apart = config.query is None and q.dtype != torch.float32
    return BackwardPlan(
        copies,
        memory=working_memory_of(q, padded_numbers(q), math.prod(q.shape) if sums_apart else 0),
        delta=delta_launch(problem, do, dq_rows=q.shape[-2], dq_width=0 if config.query else q.shape[-1]),
        key_value=_key_value(config, common),
        query=None if config.query is None else _query(config.query, common),
        scaled=scaled_launch(q, problem.scale) if config.query is None else None,
        like_dk_dv=_like_dk_dv(k),
    )


def _in_gluon(copies: tuple[bool, ...] | None, problem: Problem, do: Traits) -> BackwardPlan:
    """Plan the backward pass with Gluon kernels: one that sums dq too, or two for wide heads."""
    from pipeline.attention.triton.gluon.launches import backward_launch, query_launch  # not in every Triton version

    q, tiles = problem.q, backward_tiles(problem.q.shape[-1])
    assert tiles is not None
    key_value = backward_launch(problem, do, tiles)
    if isinstance(tiles, BackwardTiles):
        rows = triton.cdiv(q.shape[-2], tiles.block_queries) * tiles.block_queries
        width = tiles.width + tiles.tail
        numbers = math.prod(q.shape[:-1]) * PARTS_ROW.value * torch.bfloat16.itemsize // torch.float32.itemsize
        return BackwardPlan(
            copies,
            memory=working_memory_of(q, numbers, math.prod(q.shape[:-2]) * rows * width),
            delta=delta_launch(problem, do, dq_rows=rows, dq_width=width, numbers_in_parts=True),
            key_value=ChunkedLaunch(key_value, 1, None),
            query=None,
            scaled=unpacked_launch(q, rows, width, problem.scale),
            like_dk_dv=_like_dk_dv(problem.k),
        )
    return _with_dq_apart(copies, problem, do, key_value, query_launch(problem, do, tiles.query))


def _from_parts(copies: tuple[bool, ...] | None, problem: Problem, do: Traits) -> BackwardPlan:
    """Plan the backward pass with the Gluon kernels for fp32: one for dk and dv, one for dq."""
    from pipeline.attention.triton.gluon.parts import launches

    tiles = parts_tiles.BACKWARD[tile_width(problem.q.shape[-1])]
    key_value, query = launches.key_value_launch(problem, tiles), launches.query_launch(problem, tiles.query)
    in_parts = in_parts_of(problem.q, problem.k, problem.v, do)
    return _with_dq_apart(copies, problem, do, key_value, query, in_parts)


def _with_dq_apart(
    copies: tuple[bool, ...] | None,
    problem: Problem,
    do: Traits,
    key_value: Launch,
    query: Launch,
    in_parts: InParts | None = None,
) -> BackwardPlan:
    """Plan the backward pass with one kernel for dk and dv and one for dq, neither in chunks."""
    return BackwardPlan(
        copies,
        memory=working_memory_of(problem.q, padded_numbers(problem.q)),
        delta=delta_launch(problem, do, dq_rows=problem.q.shape[-2], dq_width=0),
        key_value=ChunkedLaunch(key_value, 1, None),
        query=ChunkedLaunch(query, 1, None),
        scaled=None,
        like_dk_dv=_like_dk_dv(problem.k),
        in_parts=in_parts,
    )


def _like_dk_dv(k: Traits) -> Tensor:
    return like((2, *k.shape), k.dtype, k.device)


def _short(tiles: TileConfig, common: _Common) -> Launch:
    q, k = common.problem.q, common.problem.k
    query_programs = tiles_of(q, tiles.block_queries)
    return prepare_launch(
        short_kernel,
        query_programs + tiles_of(k, tiles.block_keys),
        [*[q.dtype] * 5, torch.float32, *[q.dtype] * 3],
        [*common.scalars, query_programs],
        {**common.constants, **block_sizes(tiles)},
        tiles,
    )


def _key_value(config: BackwardConfig, common: _Common) -> ChunkedLaunch:
    """Plan dk and dv: a program takes a tile of keys and goes through all queries or a chunk of them."""
    q, k, tiles, sums_dq = common.problem.q, common.problem.k, config.key_value, config.query is None
    programs = tiles_of(k, tiles.block_keys)
    chunk = common.chunk_of(q, tiles.block_queries, programs)
    chunks = triton.cdiv(q.shape[-2], chunk)
    gradient = torch.float32 if chunks > 1 else k.dtype
    compute = prepare_launch(
        key_value_kernel,
        programs * chunks,
        [*[q.dtype] * 4, *[torch.float32] * 2, torch.float32 if sums_dq else None, gradient, gradient],
        [*common.scalars, chunk, chunks],
        {
            **common.constants,
            **block_sizes(tiles),
            "CHUNKED": chunks > 1,
            "MASK_KEYS": sums_dq and k.shape[-2] % tiles.block_keys != 0,
            "ADD_DQ": sums_dq,
            "TMA": common.choices.backward_gains_by_tma(q.shape[-1], q.shape[-2]) and tma_can_load(q, common.do),
            "TMA_REDUCE": sums_dq and _can_reduce(q),
        },
        tiles,
    )
    return ChunkedLaunch(compute, chunks, _sum(common, k, tiles.block_keys, chunk, chunks, of_keys=True))


def _can_reduce(q: Traits) -> bool:
    """Tell whether the copy engine can add to rows of dq; these must start at multiples of 16 bytes."""
    can_copy = gpu_of(q.device).has_descriptors and not is_interpreted()  # the interpreter has no such operation
    return can_copy and q.shape[-1] * 4 % ALIGNMENT_BYTES == 0


def _query(tiles: TileConfig, common: _Common) -> ChunkedLaunch:
    """Plan dq: a program takes a tile of queries and goes through all keys or a chunk of them."""
    q, k, v = common.problem.q, common.problem.k, common.problem.v
    programs = tiles_of(q, tiles.block_queries)
    chunk = common.chunk_of(k, tiles.block_keys, programs)
    chunks = triton.cdiv(k.shape[-2], chunk)
    compute = prepare_launch(
        query_kernel,
        programs * chunks,
        [*[q.dtype] * 4, *[torch.float32] * 2, torch.float32 if chunks > 1 else q.dtype],
        [*common.scalars, chunk, chunks],
        {
            **common.constants,
            **block_sizes(tiles),
            "CHUNKED": chunks > 1,
            "TMA": common.choices.backward_gains_by_tma(q.shape[-1], k.shape[-2]) and tma_can_load(k, v),
        },
        tiles,
    )
    return ChunkedLaunch(compute, chunks, _sum(common, q, tiles.block_queries, chunk, chunks, of_keys=False))


def _sum(common: _Common, side: Traits, block: int, chunk: int, chunks: int, of_keys: bool) -> Launch | None:
    """Plan the sum over chunks of the gradients of keys and values, or of queries; None if there is one chunk."""
    if chunks == 1:
        return None
    part_rows = math.prod(side.shape[:-1])
    rows = part_rows * (2 if of_keys else 1)
    return prepare_launch(
        sum_kernel,
        triton.cdiv(rows, ROWS_PER_PROGRAM.value),
        [torch.float32, side.dtype],
        [rows, part_rows, side.shape[-2], band_bounds(common.problem.band)[1], chunk, chunks],
        {
            "HAS_END": common.problem.band.end is not None,
            "OF_KEYS": of_keys,
            "HEAD_DIM": side.shape[-1],
            "BLOCK_TILE": block,
        },
        ELEMENTWISE,
    )
