"""FlashAttention-2 in PyTorch operations: the algorithm in readable form, on any device."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pipeline.attention.inputs import check_inputs, traits, under_autocast

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
TILE = 128


def tiled_attention(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Tensor:
    """Compute attention by FlashAttention-2 in PyTorch operations; under autocast in its dtype."""
    return FlashAttentionTiled.apply(*under_autocast(q, k, v), is_causal)


class FlashAttentionTiled(torch.autograd.Function):
    """Compute softmax(q kᵀ / √head_dim) v tile by tile, without the score matrix in memory.

    `apply(q, k, v, is_causal)`. Shapes: q and the result are (batch, n_queries, head_dim) or (batch, heads, n_queries,
    head_dim), k and v the same with n_keys. Causal: query i attends to key j if j <= i. Tiles are computed in fp32, or
    in fp64 for fp64 inputs. Kept for the backward pass: q, k, v, the output, and the log-sum-exp (LSE) of each query's
    scores (natural logarithm, shape of q without head_dim).

    Raises ValueError for unsupported shapes, dtypes or masks. Source: Dao 2023, FlashAttention-2, algorithms 1 and 2.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        """Compute the output and save what the backward pass needs."""
        check_inputs(traits(q), traits(k), traits(v), DTYPES)
        if not isinstance(is_causal, bool):
            given = "a tensor" if isinstance(is_causal, Tensor) else repr(is_causal)
            raise ValueError(f"is_causal must be False or True, got {given}")
        with torch.autocast(q.device.type, enabled=False):
            o, lse = _forward(q, k, v, is_causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal = is_causal
        return o

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute the gradients of q, k and v from that of the output, recomputing the scores."""
        return _gradients(ctx, do, *ctx.saved_tensors)


# The saved tensors are arguments so that `once_differentiable` sees their graph: `do` has none if the loss is linear in
# the output.
@once_differentiable
def _gradients(
    ctx: Any, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, None]:
    with torch.autocast(do.device.type, enabled=False):
        return (*_backward(q, k, v, o, lse, do, ctx.is_causal), None)


def _forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    working = _working_dtype(q)
    o = torch.empty_like(q)
    lse = q.new_empty(q.shape[:-1], dtype=working)
    for queries in _tiles(q.shape[-2]):
        q_tile = q[..., queries, :].to(working)
        o_tile = torch.zeros_like(q_tile)
        # Running maximum of the scores, and running sum of exp(score - maximum).
        maximum = q_tile.new_full(q_tile.shape[:-1], -math.inf)
        total = torch.zeros_like(maximum)
        for keys in _visible_tiles(queries, k.shape[-2], is_causal):
            scores = _scores(q_tile, k[..., keys, :].to(working), queries, keys, is_causal)
            new_maximum = torch.maximum(maximum, scores.amax(-1))
            weights = torch.exp(scores - new_maximum[..., None])
            rescale = torch.exp(maximum - new_maximum)
            total = rescale * total + weights.sum(-1)
            o_tile = rescale[..., None] * o_tile + weights @ v[..., keys, :].to(working)
            maximum = new_maximum
        o[..., queries, :] = (o_tile / total[..., None]).to(o.dtype)
        lse[..., queries] = maximum + total.log()
    return o, lse


def _backward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    working = _working_dtype(q)
    scale = 1 / math.sqrt(q.shape[-1])
    dq, dk, dv = (torch.zeros_like(tensor, dtype=working) for tensor in (q, k, v))
    for queries in _tiles(q.shape[-2]):
        q_tile, do_tile = q[..., queries, :].to(working), do[..., queries, :].to(working)
        # The softmax's gradient subtracts the mean of dp under the weights, which is o · do (Dao 2023, section 3.1).
        delta = (o[..., queries, :].to(working) * do_tile).sum(-1, keepdim=True)
        for keys in _visible_tiles(queries, k.shape[-2], is_causal):
            k_tile, v_tile = k[..., keys, :].to(working), v[..., keys, :].to(working)
            scores = _scores(q_tile, k_tile, queries, keys, is_causal)
            weights = torch.exp(scores - lse[..., queries, None])
            dv[..., keys, :] += weights.transpose(-2, -1) @ do_tile
            ds = weights * (do_tile @ v_tile.transpose(-2, -1) - delta) * scale
            dq[..., queries, :] += ds @ k_tile
            dk[..., keys, :] += ds.transpose(-2, -1) @ q_tile
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _working_dtype(q: Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _tiles(length: int) -> Iterator[slice]:
    return (slice(start, min(start + TILE, length)) for start in range(0, length, TILE))


def _visible_tiles(queries: slice, n_keys: int, is_causal: bool) -> Iterator[slice]:
    """Return the tiles of keys that any of these queries attends to."""
    return _tiles(min(n_keys, queries.stop) if is_causal else n_keys)


def _scores(q_tile: Tensor, k_tile: Tensor, queries: slice, keys: slice, is_causal: bool) -> Tensor:
    """Compute a tile of scores, -inf where the key is in the query's future."""
    scores = q_tile @ k_tile.transpose(-2, -1) / math.sqrt(q_tile.shape[-1])
    if is_causal and keys.stop > queries.start + 1:
        i = torch.arange(queries.start, queries.stop, device=scores.device)
        j = torch.arange(keys.start, keys.stop, device=scores.device)
        scores = scores.masked_fill(j > i[:, None], -math.inf)
    return scores
