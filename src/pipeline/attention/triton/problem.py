"""What a call of the Triton attention is to compute, but for the numbers: all that its plans follow from."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, Layout, copies_of, layouts_of, strides_read
from pipeline.tf32 import allows_tf32

PROBLEMS_KEPT = 4096


@dataclass(frozen=True, eq=False)
class Problem:
    """Queries, keys and values by the traits of what is read, the mask, and whether one TF32 product is enough.

    Like inputs share one, so that what was worked out for it is found by its identity. copies: which of the three are
    read from copies, None if none is; gpu: the index of theirs.
    """

    q: Traits
    k: Traits
    v: Traits
    copies: tuple[bool, ...] | None
    is_causal: bool
    one_tf32_product: bool
    gpu: int | None


def problem_of(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Problem:
    """Return the problem of these inputs."""
    # The strides alone where all addresses are aligned, which one test tells.
    layouts = q.stride(), k.stride(), v.stride()
    if (q.data_ptr() | k.data_ptr() | v.data_ptr()) % ALIGNMENT_BYTES:
        layouts = layouts_of(q, k, v)
    return _problem(  # Plain tuples: with `traits` the look-up of a problem seen before would take half as long again.
        (q.shape, k.shape, v.shape),
        layouts,
        (q.dtype, k.dtype, v.dtype),
        (q.device, k.device, v.device),
        is_causal,
        q.dtype == torch.float32 and allows_tf32(),
    )


@functools.lru_cache(PROBLEMS_KEPT)
def _problem(
    shapes: tuple[torch.Size, ...],
    layouts: tuple[Layout, ...],
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[torch.device, ...],
    is_causal: bool,
    one_tf32_product: bool,
) -> Problem:
    read = map(Traits, shapes, map(strides_read, shapes, layouts), dtypes, devices)
    return Problem(*read, copies_of(layouts), is_causal, one_tf32_product, devices[0].index)
