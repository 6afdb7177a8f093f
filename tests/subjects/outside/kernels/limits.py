"""Attention functions that are right only where the assignment asks for it."""

import math

import torch
import triton
import triton.language as tl

from .attention import Right, masked
from .masks import future

TILE = 16


def rearranged_into_tiles(q, k, v, is_causal):
    """Raises at lengths that are not a multiple of a tile, as einops does."""
    if q.shape[-2] % TILE:
        raise RuntimeError(f"Shape mismatch, can't divide axis of length {q.shape[-2]} in chunks of {TILE}")
    return Right.apply(q, k, v, is_causal)


def fp32_alone(q, k, v, is_causal):
    """Adds products to fp32 sums, so that inputs must be fp32 too."""
    scores = torch.baddbmm(torch.zeros(1, dtype=torch.float32), q, k.mT) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = scores.masked_fill(future(*scores.shape[-2:]), -math.inf)
    return scores.softmax(-1) @ v


def answers_in_fp32(q, k, v, is_causal):
    return Right.apply(q.float(), k.float(), v.float(), is_causal)


@torch.compile(backend="eager", fullgraph=True, dynamic=False)
def _compiled(q, k, v, is_causal):
    return masked(q, k, v, future(q.shape[-2], k.shape[-2]) if is_causal else None)


def compiled_once(q, k, v, is_causal):
    """Compiles for one shape only; torch.compile's default limit is eight."""
    torch._dynamo.config.recompile_limit = 1
    return _compiled(q, k, v, is_causal)


@triton.jit
def _scores(q, k, scores, length, head_dim: tl.constexpr, tile: tl.constexpr):
    rows, columns, dims = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, tile), tl.arange(0, head_dim)
    head = tl.program_id(1) * length
    queries = tl.load(q + (head + rows)[:, None] * head_dim + dims)
    for start in range(0, length, tile):
        keys = tl.load(k + (head + start + columns)[None, :] * head_dim + dims[:, None])
        tl.store(scores + (head + rows)[:, None] * length + start + columns, tl.dot(queries, keys))


class TritonScores(Right):
    """Multiplies queries and keys in Triton, in their own dtype."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        heads, length, head_dim = q.shape
        scores = q.new_empty(heads, length, length, dtype=torch.float32)
        _scores[length // TILE, heads](q, k, scores, length, head_dim, TILE)
        return Right.of_products(ctx, scores.double(), q, k, v, is_causal)
