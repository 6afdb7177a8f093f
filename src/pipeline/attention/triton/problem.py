"""Describe a call of the Triton attention except for its values: everything that plans depend on."""

import functools
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from pipeline.attention.inputs import Traits, check_inputs
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES, Layout, copies_of, layouts_of, strides_read
from pipeline.attention.triton.mask import Band, Causal, band_of
from pipeline.attention.triton.tiles import MAX_HEAD_DIM
from pipeline.tf32 import allows_tf32

PROBLEMS_KEPT = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, eq=False)
class Problem:
    """Traits of q, k and v as the kernels read them, mask, scale, and whether one TF32 product is enough.

    Inputs that are alike share one problem, so that its plans are found by its identity. copies: which of q, k and v
    are read from copies, None if none is; gpu: the index of their device.
    """

    q: Traits
    k: Traits
    v: Traits
    copies: tuple[bool, ...] | None
    band: Band
    scale: float
    one_tf32_product: bool
    gpu: int | None

    @property
    def scale_log2(self) -> float:
        """Return the factor that turns a product of q and k into an exponent of two."""
        return math.log2(math.e) * self.scale


def problem_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: Causal = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
    one_tf32_product: bool | None = None,
) -> Problem:
    """Return the problem of these inputs; raises ValueError for inputs that no kernel supports.

    one_tf32_product: whether one is enough for fp32; None: as torch's own switch says now.
    """
    # If all addresses are aligned, which one test tells, the layouts are just the strides.
    layouts: tuple[Layout, ...] = q.stride(), k.stride(), v.stride()
    at_q, at_k, at_v = q.data_ptr(), k.data_ptr(), v.data_ptr()
    if (at_q | at_k | at_v) % ALIGNMENT_BYTES:
        layouts = layouts_of(q, k, v)
    # Plain tuples: with `traits`, looking up a known problem would take 50% longer.
    problem = _problem(
        (q.shape, k.shape, v.shape),
        layouts,
        (q.dtype, k.dtype, v.dtype),
        (q.device, k.device, v.device),
        is_causal,
        scale,
        enable_gqa,
        window,
        q.dtype == torch.float32 and (allows_tf32() if one_tf32_product is None else one_tf32_product),
    )
    if not (at_q and at_k and at_v) and q.device.type != "meta":
        kinds = ", ".join(f"{name} is a {type(tensor).__name__}" for name, tensor in {"q": q, "k": k, "v": v}.items())
        raise ValueError(f"{kinds}: all must have memory of their own, as what a DTensor's to_local() returns")
    return problem


@functools.lru_cache(PROBLEMS_KEPT)
def _problem(
    shapes: tuple[torch.Size, ...],
    layouts: tuple[Layout, ...],
    dtypes: tuple[torch.dtype, ...],
    devices: tuple[torch.device, ...],
    is_causal: Causal,
    scale: float | None,
    enable_gqa: bool,
    window: int | None,
    one_tf32_product: bool,
) -> Problem:
    q, k, v = map(Traits, shapes, map(strides_read, shapes, layouts), dtypes, devices)
    check_inputs(q, k, v, DTYPES, enable_gqa)
    check_kinds(is_causal, scale, window)
    _check_values(q.shape[-1], scale, window)
    band = band_of(is_causal, None if window is None else int(window), q.shape[-2], k.shape[-2])
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    return Problem(q, k, v, copies_of(layouts), band, scale, one_tf32_product, devices[0].index)


def check_kinds(is_causal: Causal, scale: float | None, window: int | None) -> None:
    """Check the types of these arguments, and that the mask exists; raises ValueError.

    A cache looks up a tensor by identity: its first value would be used for all later ones, and it would get no
    gradient.
    """
    if isinstance(is_causal, Tensor) or is_causal not in (False, True, "bottom_right"):
        raise ValueError(f'is_causal must be False, True or "bottom_right", got {_shown(is_causal)}')
    if scale is not None and not isinstance(scale, Real):
        raise ValueError(f"scale must be a number above 0, got {_shown(scale)}")
    if window is not None and not isinstance(window, Integral):
        raise ValueError(f"window must be an int, got {_shown(window)}")


def _check_values(head_dim: int, scale: float | None, window: int | None) -> None:
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim must be at most {MAX_HEAD_DIM}, got {head_dim}")
    if scale is not None and not 0 < scale < math.inf:
        raise ValueError(f"scale must be a number above 0, got {scale}")
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1, got {window}")


def _shown(argument: Any) -> str:
    return "a tensor" if isinstance(argument, Tensor) else repr(argument)
