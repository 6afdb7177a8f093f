"""Compute attention and its gradients in fp64, some rows of the score matrix at a time: the reference for errors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Elements of one score-sized fp64 matrix: 256 MiB. A handful of such matrices exist at once.
CHUNK_ELEMENTS = 2**25
# A sum this far below its natural scale is zero up to fp64 rounding.
VANISHING = 1e-12


@dataclass(frozen=True)
class ExactAttention:
    """Output, dq, dk and dv in fp64, shaped like q, q, k and v, and their scales `scale_*` (`natural_scales`)."""

    output: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    scale_output: Tensor
    scale_dq: Tensor
    scale_dk: Tensor
    scale_dv: Tensor

    def relative_error(self, quantity: str, computed: Tensor) -> float:
        """Return the L2 norm of the error of `output`, `dq`, `dk` or `dv` over the norm of the exact value.

        If the exact value vanishes, divide by the norm of its natural scale. dq and dk vanish with a single key, whose
        weight is 1 whatever its score.
        """
        exact, scale = getattr(self, quantity), getattr(self, f"scale_{quantity}")
        norm = exact.norm() if exact.norm() > VANISHING * scale.norm() else scale.norm()
        return ((computed.detach().double() - exact).norm() / norm).item()


def exact_attention(
    q: Tensor, k: Tensor, v: Tensor, output_gradient: Tensor, is_causal: bool, chunk_elements: int = CHUNK_ELEMENTS
) -> ExactAttention:
    """Compute attention, its gradients and their natural scales in fp64 from inputs of any floating dtype.

    Shapes: q and output_gradient are (..., heads, n_queries, head_dim), k and v (..., kv_heads, n_keys, head_dim); each
    of their heads serves heads / kv_heads consecutive query heads. At most `chunk_elements` of the score matrix, or one
    row, exist at once. All rows are computed, none is sampled. Formulas: Dao et al. 2022 (FlashAttention), appendix B.
    """
    totals = [torch.zeros(x.shape, dtype=torch.float64, device=x.device) for x in (q, q, k, v) * 2]
    all_q, all_k, all_v, all_gradients = (x.detach().flatten(end_dim=-3) for x in (q, k, v, output_gradient))
    results = [x.view(-1, *x.shape[-2:]) for x in totals]
    group = len(all_q) // len(all_k)
    for head in range(len(all_q)):
        kv_head = head // group
        inputs = (all_q[head], all_k[kv_head], all_v[kv_head], all_gradients[head])
        head_q, head_k, head_v, gradient = (x.double() for x in inputs)
        of_head = [x[place] for x, place in zip(results, (head, head, kv_head, kv_head) * 2, strict=True)]
        _one_head(head_q, head_k, head_v, gradient, is_causal, chunk_elements, of_head)
    return ExactAttention(*totals)


def natural_scales(
    weights: Tensor, q: Tensor, k: Tensor, v: Tensor, output_gradient: Tensor, errors: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum the absolute values of the products that make up output, dq, dk and dv.

    A rounding error is a fraction of these sums, even if the products cancel. Given `errors` of the weights
    (..., n_queries, n_keys), return instead the errors they cause.
    """
    errors = weights if errors is None else errors
    q, k, v, gradient = (x.abs() for x in (q, k, v, output_gradient))
    # A score's gradient is weight · (do · v - do · output): take absolute values in both dot products.
    differences = gradient @ v.mT + (gradient * (weights @ v)).sum(-1, keepdim=True)
    score_gradients = errors * differences / math.sqrt(q.shape[-1])
    return errors @ v, score_gradients @ k, score_gradients.mT @ q, errors.mT @ gradient


def allowed_errors(
    roundings: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output_gradient: Tensor,
    is_causal: bool,
    product_eps: float | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Bound the error of every element of the output, dq, dk and dv, which are sums of products.

    Each product may be off by `roundings` unit roundoffs of the inputs' dtype (or of `product_eps`, if given: twice the
    unit roundoff of products). A sum of n rounded products is typically off by another √n unit roundoffs of the dtype
    of sums. The scores' errors reach the weights: a weight's relative error is the absolute error of its score minus
    the mean score. The whole score matrix exists at once.
    """
    dtype, sums = torch.finfo(q.dtype), torch.finfo(torch.promote_types(q.dtype, torch.float32))
    eps = dtype.eps if product_eps is None else product_eps
    q, k, v, output_gradient = (x.detach().double() for x in (q, k, v, output_gradient))
    scores, products = (a @ b.mT / math.sqrt(q.shape[-1]) for a, b in ((q, k), (q.abs(), k.abs())))
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -math.inf)
    weights = torch.softmax(scores, dim=-1)
    longest = max(*scores.shape[-2:], q.shape[-1])
    of_sums = (1 + products + (weights * products).sum(-1, keepdim=True)) * math.sqrt(longest) * sums.eps / 2
    # Close to zero, rounding is off by up to half the smallest subnormal number.
    errors = weights * (roundings * eps / 2 + of_sums) + roundings * dtype.smallest_normal * dtype.eps / 2
    return natural_scales(weights, q, k, v, output_gradient, errors)


def _one_head(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output_gradient: Tensor,
    is_causal: bool,
    chunk_elements: int,
    results: list[Tensor],
) -> None:
    """Fill in output and dq of one head and add to its dk, dv and scales, some rows at a time."""
    output, dq, dk, dv, *scales = results
    scale = 1 / math.sqrt(q.shape[-1])
    step = max(1, chunk_elements // k.shape[0])
    for first in range(0, q.shape[0], step):
        rows = slice(first, min(first + step, q.shape[0]))
        # Leave out keys that no query of these rows sees.
        keys = slice(0, min(rows.stop, k.shape[0]) if is_causal else k.shape[0])
        weights = _weights(q[rows] * scale, k[keys], first if is_causal else None)
        output[rows] = weights @ v[keys]
        gradient = output_gradient[rows]
        dv[keys] += weights.T @ gradient
        row_sums = (gradient * output[rows]).sum(-1, keepdim=True)
        score_gradients = (gradient @ v[keys].T).sub_(row_sums).mul_(weights).mul_(scale)
        dq[rows] = score_gradients @ k[keys]
        dk[keys] += score_gradients.T @ q[rows]
        sums = natural_scales(weights, q[rows], k[keys], v[keys], gradient)
        for total, part, summed in zip(scales, (rows, rows, keys, keys), sums, strict=True):
            total[part] += summed


def _weights(scaled_q: Tensor, k: Tensor, first_row: int | None) -> Tensor:
    """Return the softmax over keys; causal if `first_row`, the index of the first query, is given."""
    scores = scaled_q @ k.T
    if first_row is not None:
        queries = torch.arange(first_row, first_row + scores.shape[0], device=scores.device)
        future = torch.arange(k.shape[0], device=scores.device) > queries[:, None]
        scores.masked_fill_(future, -math.inf)
    return torch.softmax(scores, dim=-1)
