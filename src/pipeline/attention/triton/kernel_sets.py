"""Choose between the Gluon kernels for Hopper and the plain kernels, and give the reason.

The plain kernels, in `kernels`, run wherever Triton does, including its interpreter. Those in `gluon` are chosen where
they can run and were found to be faster.
"""

import functools
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import triton
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.direct_launch import heads, strides, tiles_of, tma_can_load
from pipeline.attention.triton.gluon import tiles as gluon_tiles
from pipeline.attention.triton.gluon.parts import tiles as parts_tiles
from pipeline.attention.triton.gpu import HOPPER, gpu_of
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES
from pipeline.attention.triton.mask import CAUSAL, FULL, Causal
from pipeline.attention.triton.problem import Problem, problem_of
from pipeline.attention.triton.tiles import tile_width
from pipeline.compat.triton_private import is_interpreted

VARIABLE = "PIPELINE_ATTENTION"  # "tl" makes the whole process use the plain kernels
ALIGNED_COLUMNS = ALIGNMENT_BYTES // torch.bfloat16.itemsize  # the copy engine reads rows of multiples of this
FIRST_TRITON = (3, 6)  # earlier versions have other names for what our kernels use


class KernelSet(NamedTuple):
    """A set of kernels, and why a problem gets it."""

    name: Literal["gluon", "plain"]
    reason: str


@dataclass(frozen=True)
class KernelSets:
    """The kernel sets of a problem's two passes."""

    forward: KernelSet
    backward: KernelSet


def kernels_of(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    is_causal: Causal = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window: int | None = None,
) -> KernelSets:
    """Return which kernels these inputs get in each pass and why, if the output's gradient is contiguous.

    The backward pass depends on the current setting of `torch.use_deterministic_algorithms`. Raises ValueError for a
    GPU that gets no kernels and for unsupported inputs.
    """
    if q.is_cuda and (refused := gpu_of(q.device).why_refused):
        raise ValueError(refused)
    problem = problem_of(q, k, v, is_causal, scale, enable_gqa, window)
    do = problem.q._replace(stride=torch.empty(problem.q.shape, device="meta").stride())
    repeatable = torch.are_deterministic_algorithms_enabled()
    return KernelSets(
        forward_kernels(problem),
        backward_kernels(problem, do, repeatable),
    )


def forward_kernels(problem: Problem) -> KernelSet:
    """Choose the kernels of a forward pass."""
    q, k, v = problem.q, problem.k, problem.v
    if q.dtype == torch.float32:
        return _chosen(_why_not_in_parts(problem))
    tiles = gluon_tiles.forward_tiles(q.shape[-1], k.shape[-2], problem.band == CAUSAL)
    why_not = _why_not(problem, tiles, gluon_tiles.SHORTEST) or _why_not_read(q, k, v)
    if why_not is None and tiles is not None:
        why_not = _why_too_few(q, tiles.block_queries)
    return _chosen(why_not)


def backward_kernels(problem: Problem, do: Traits, repeatable: bool) -> KernelSet:
    """Choose the kernels of a backward pass; repeatable: dq should be bitwise repeatable."""
    q, k, v = problem.q, problem.k, problem.v
    if q.dtype == torch.float32:
        return _chosen(_why_not_in_parts(problem))
    tiles = gluon_tiles.backward_tiles(q.shape[-1])
    why_not = _why_not(problem, tiles, gluon_tiles.SHORTEST) or _why_not_read(q, k, v, do)
    if why_not is None and tiles is not None:
        if repeatable and not tiles.query:
            why_not = "torch.use_deterministic_algorithms is on, and Gluon's sums of dq are in no fixed order"
        else:
            why_not = _why_too_few(k, tiles.block_keys)
    return _chosen(why_not)


def _chosen(why_not: str | None) -> KernelSet:
    if why_not is not None:
        return KernelSet("plain", why_not)
    return KernelSet("gluon", "a Hopper GPU, and work for all of it")


def why_not_on(device: torch.device) -> str | None:
    """Return why a device cannot run the Gluon kernels, whatever the problem, or None if it can."""
    if is_plain_asked():
        return f"{VARIABLE}=tl"
    if device.type != "cuda" or is_interpreted():
        return "no GPU"
    gpu = gpu_of(device)
    if gpu.vendor != "nvidia" or gpu.capability != HOPPER:
        return "no Hopper GPU"
    if not has_gluon():
        return f"Triton {triton.__version__} has no Gluon as of {'.'.join(map(str, FIRST_TRITON))}"
    return None


def _why_not(problem: Problem, tiles: object | None, shortest: Mapping[int, int]) -> str | None:
    """Return why the device, mask or shapes rule out the Gluon kernels, or None; tiles: None if Gluon has none."""
    q, k = problem.q, problem.k
    if why_not := why_not_on(q.device):
        return why_not
    if problem.band not in (FULL, CAUSAL):
        return "a mask that is neither full nor causal from the top left"
    if tiles is None or q.shape[-1] % ALIGNED_COLUMNS:
        return f"head_dim {q.shape[-1]}"
    least = shortest[tile_width(q.shape[-1])]
    if min(q.shape[-2], k.shape[-2]) < least:
        return f"fewer than {least} queries or keys"
    return None


def _why_not_in_parts(problem: Problem) -> str | None:
    """Return why the kernels that multiply fp32 in parts are ruled out, or None.

    The answer is the same for both passes, because the backward pass must recompute weights from the same scores:
    another kernel rounds scores differently, so that weights of large scores would not sum to 1.
    """
    q, k = problem.q, problem.k
    if problem.one_tf32_product:
        return "fp32 multiplied as one TF32 product"
    forward, backward = (table.get(tile_width(q.shape[-1])) for table in (parts_tiles.FORWARD, parts_tiles.BACKWARD))
    why_not = _why_not(problem, forward, parts_tiles.SHORTEST)
    if why_not is None and forward is not None and backward is not None:
        why_not = _why_too_few(q, forward.block_queries) or _why_too_few(k, backward.block_keys)
    return why_not


def _why_not_read(*read: Traits) -> str | None:
    """Return why the copy engine cannot read these, or None; it needs aligned strides, none of them 0."""
    if tma_can_load(*read) and all(_has_apart(given) for given in read):
        return None
    return "strides that the copy engine cannot take"


def _has_apart(given: Traits) -> bool:
    """Tell whether the matrices are separate in memory, not one that is expanded."""
    batch, head, _row = strides(given)
    return (batch > 0 or given.shape[0] == 1) and (head > 0 or heads(given) == 1)


def _why_too_few(side: Traits, block: int) -> str | None:
    """Return why the tiles of queries or keys are too few for the GPU, or None."""
    tiles = tiles_of(side, block)
    sms = gpu_of(side.device).multiprocessors
    return f"{tiles} tiles for {sms} multiprocessors" if tiles < gluon_tiles.LEAST_TILES_PER_SM * sms else None


@functools.cache
def is_plain_asked() -> bool:
    """Tell whether the environment asks for plain kernels; read once: plans are cached and both passes must agree."""
    return os.environ.get(VARIABLE) == "tl"


@functools.cache
def has_gluon() -> bool:
    """Tell whether Triton has a version of Gluon that the kernels can use."""
    version = tuple(int(part) for part in triton.__version__.split(".")[:2])
    return version >= FIRST_TRITON and importlib.util.find_spec("triton.experimental.gluon") is not None
