"""Plan a forward pass of the Triton attention from its inputs' traits: checks, grids, kernels."""

import functools
import math
from dataclasses import dataclass, field

import torch
import triton
from torch import Tensor

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
from pipeline.attention.triton.gluon.tiles import forward_tiles
from pipeline.attention.triton.gpu import gpu_of
from pipeline.attention.triton.in_parts import InParts, in_parts_of
from pipeline.attention.triton.kernel_sets import forward_kernels
from pipeline.attention.triton.kernels.chunks import ROWS_PER_PROGRAM, combine_kernel
from pipeline.attention.triton.kernels.forward import forward_kernel
from pipeline.attention.triton.mask import CAUSAL
from pipeline.attention.triton.problem import PROBLEMS_KEPT, Problem
from pipeline.attention.triton.tile_tables import tables_for
from pipeline.attention.triton.tiles import IN_USE, Choices, tile_width


@dataclass(frozen=True)
class ForwardPlan:
    """A forward pass: one kernel, or two if the keys are cut into chunks.

    like_lse, like_chunks: templates to allocate the log-sum-exp and both results of the chunks from (`like`);
    in_parts: first splits q, k and v into bf16 parts, None if they are not split.
    """

    attend: Launch
    combine: Launch | None
    like_lse: Tensor = field(compare=False)
    like_chunks: tuple[Tensor, ...] = field(compare=False, default=())
    in_parts: InParts | None = None


@functools.lru_cache(PROBLEMS_KEPT)
def forward_plan(problem: Problem, choices: Choices = IN_USE) -> ForwardPlan:
    """Plan a forward pass; raises ValueError for an unsupported device."""
    q, k, v, band = problem.q, problem.k, problem.v, problem.band
    gpu = gpu_of(q.device)
    if gpu.why_refused:
        raise ValueError(gpu.why_refused)
    if choices.gluon and forward_kernels(problem).name == "gluon":
        return _in_gluon(problem)
    n_queries, head_dim, n_keys = q.shape[-2], q.shape[-1], k.shape[-2]
    tables = tables_for(gpu)
    block_queries = choices.forward(q.dtype, head_dim, n_keys, tables).block_queries
    programs = tiles_of(q, block_queries)
    chunking = choices.forward_chunking(q.dtype)
    chunk = n_keys
    if band.shows_first_key:  # else some queries might have no chunk that is written
        chunk = choices.chunk_length(chunking, programs, n_keys, block_queries, gpu.multiprocessors)
    chunks = triton.cdiv(n_keys, chunk)
    keys_in_reach = band.keys_in_reach(chunk, block_queries)
    tiles = choices.forward(q.dtype, head_dim, keys_in_reach, tables)
    output = q.dtype if chunks == 1 else torch.float32
    attend = prepare_launch(
        forward_kernel,
        programs * chunks,
        [q.dtype] * 3 + [output, torch.float32],
        [
            *(stride for given in (q, k, v) for stride in strides(given)),
            *(heads(q), heads_per_kv(q, k), n_queries, n_keys, *band_bounds(band), chunk, chunks, problem.scale_log2),
        ],
        {
            **band_constants(band),
            "HEAD_DIM": head_dim,
            "MAY_HIDE_ALL": band.may_hide_all,
            **block_sizes(tiles),
            "CHUNKED": chunks > 1,
            "TMA": choices.forward_gains_by_tma(keys_in_reach) and tma_can_load(k, v),
            "PRECISION": precision(problem),
        },
        tiles,
    )
    like_lse = like(q.shape[:-1], torch.float32, q.device)
    if chunks == 1:
        return ForwardPlan(attend, None, like_lse)
    rows = math.prod(q.shape[:-1])
    combine = prepare_launch(
        combine_kernel,
        triton.cdiv(rows, ROWS_PER_PROGRAM.value),
        [torch.float32, torch.float32, q.dtype, torch.float32],
        [rows, n_queries, n_keys, band_bounds(band)[1], chunk, chunks],
        {
            "HAS_END": band.end is not None,
            "HEAD_DIM": head_dim,
            "BLOCK_QUERIES": tiles.block_queries,
        },
        ELEMENTWISE,
    )
    like_chunks = tuple(like((chunks, *shape), torch.float32, q.device) for shape in (q.shape, q.shape[:-1]))
    return ForwardPlan(attend, combine, like_lse, like_chunks)


def _in_gluon(problem: Problem) -> ForwardPlan:
    from pipeline.attention.triton.gluon.launches import forward_launch  # not in every Triton version

    q, k = problem.q, problem.k
    like_lse = like(q.shape[:-1], torch.float32, q.device)
    if q.dtype == torch.float32:
        from pipeline.attention.triton.gluon.parts import launches

        attend = launches.forward_launch(problem, parts_tiles.FORWARD[tile_width(q.shape[-1])])
        return ForwardPlan(attend, None, like_lse, in_parts=in_parts_of(q, k, problem.v))
    tiles = forward_tiles(q.shape[-1], k.shape[-2], problem.band == CAUSAL)
    assert tiles is not None  # else `forward_kernels` would not have chosen Gluon
    return ForwardPlan(forward_launch(problem, tiles), None, like_lse)
