"""Attention and its gradients in fp64, a few rows of the score matrix at a time: what errors are measured against."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Of one score-sized fp64 matrix, of which a handful is there at once: 256 MiB each.
CHUNK_ELEMENTS = 2**25


@dataclass(frozen=True)
class ExactAttention:
    """Name output and gradients, all fp64, of the shapes of q, q, k and v."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, output_gradient: Tensor, is_causal: bool, chunk_elements: int = CHUNK_ELEMENTS
) -> ExactAttention:
    """Compute attention and its gradients in fp64 from inputs of any floating dtype.

    Shapes: q and output_gradient are (..., n_queries, head_dim), k and v (..., n_keys, head_dim). Never more than
    `chunk_elements` of the score matrix are there at once, or one row of it. Every row counts, none is sampled.
    Formulas: Dao et al. 2022 (FlashAttention), appendix B.
    """
    found = [torch.zeros(x.shape, dtype=torch.float64, device=x.device) for x in (q, q, k, v)]
    heads = [x.detach().flatten(end_dim=-3) for x in (q, k, v, output_gradient)]
    results = [x.view(-1, *x.shape[-2:]) for x in found]
    for head in range(heads[0].shape[0]):
        inputs = [x[head].double() for x in heads]
        _one_head(*inputs, is_causal, chunk_elements, [x[head] for x in results])
    return ExactAttention(*found)


def _one_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output_gradient: Tensor,
    is_causal: bool,
    chunk_elements: int,
    results: list[Tensor],
) -> None:
    """Fill in the results (output, dq, dk, dv) of one head, some rows at a time."""
    output, dq, dk, dv = results
    scale = 1 / math.sqrt(q.shape[-1])
    step = max(1, chunk_elements // k.shape[0])
    for first in range(0, q.shape[0], step):
        rows = slice(first, min(first + step, q.shape[0]))
        # Keys that no query of these rows sees are left out.
        keys = slice(0, min(rows.stop, k.shape[0]) if is_causal else k.shape[0])
        weights = _weights(q[rows] * scale, k[keys], first if is_causal else None)
        output[rows] = weights @ v[keys]
        gradient = output_gradient[rows]
        dv[keys] += weights.T @ gradient
        row_sums = (gradient * output[rows]).sum(-1, keepdim=True)
        score_gradients = (gradient @ v[keys].T).sub_(row_sums).mul_(weights).mul_(scale)
        dq[rows] = score_gradients @ k[keys]
        dk[keys] += score_gradients.T @ q[rows]


def _weights(scaled_q: Tensor, k: Tensor, first_row: int | None) -> Tensor:
    """Return the softmax over keys; causal, with `first_row` the index of the first query, unless that is None."""
    scores = scaled_q @ k.T
    if first_row is not None:
        queries = torch.arange(first_row, first_row + scores.shape[0], device=scores.device)
        future = torch.arange(k.shape[0], device=scores.device) > queries[:, None]
        scores.masked_fill_(future, -math.inf)
    return torch.softmax(scores, dim=-1)
