"""What a call of the Triton attention is to compute, but for the numbers: all that its plans follow from."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.attention.inputs import Traits

PROBLEMS_KEPT = 4096


@dataclass(frozen=True, eq=False)
class Problem:
    """Queries, keys and values by their traits, the mask, and whether they are multiplied as TF32 in one product.

    Like inputs share one, so that what was worked out for it is found by its identity. gpu: the index of theirs.
    """

    q: Traits
    k: Traits
    v: Traits
    is_causal: bool
    one_tf32_product: bool
    gpu: int | None


def problem_of(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Problem:
    """Return the problem of these inputs."""
    return _problem(  # Plain tuples: with `traits` the look-up of a problem seen before would take half as long again.
        (q.shape, q.stride(), q.dtype, q.device),
        (k.shape, k.stride(), k.dtype, k.device),
        (v.shape, v.stride(), v.dtype, v.device),
        is_causal,
        q.dtype == torch.float32 and torch.get_float32_matmul_precision() != "highest",
    )


@functools.lru_cache(PROBLEMS_KEPT)
def _problem(q: tuple, k: tuple, v: tuple, is_causal: bool, one_tf32_product: bool) -> Problem:
    given = [Traits(*key) for key in (q, k, v)]
    return Problem(*given, is_causal, one_tf32_product, given[0].device.index)
