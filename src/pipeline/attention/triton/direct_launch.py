"""Compile Triton kernels for their arguments, launch them without a look-up, and prepare what they take of tensors."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.gpu import gpu_of
from pipeline.attention.triton.layouts import ALIGNMENT_BYTES
from pipeline.attention.triton.mask import Band
from pipeline.attention.triton.problem import Problem
from pipeline.attention.triton.tiles import TileConfig
from pipeline.compat.triton_private import is_interpreted, launcher

# Programmatic dependent launch: each kernel is launched while the one before ends (`wait_for_kernel_before`).
OVERLAPPED = {"launch_pdl": True}
ELEMENTWISE = TileConfig(64, 64, num_warps=4, num_stages=1)  # for kernels that only stream rows

# Call it with a kernel's tensors.
Launch = Callable[..., None]


def prepare_launch(
    kernel: Any,
    programs: int,
    dtypes: Sequence[torch.dtype | None],
    scalars: Sequence[float],
    constants: dict[str, Any],
    tiles: TileConfig,
) -> Launch:
    """Compile a kernel for its arguments; return a function that launches it on tensors, its first arguments.

    dtypes: of the tensors, None for one that is not passed.
    """
    if is_interpreted():
        interpreted = kernel[(programs, 1, 1)]
        arguments = _arguments(kernel, scalars, constants)
        return lambda *tensors: interpreted(*tensors, *arguments)
    return compile_launch(kernel, programs, dtypes, scalars, constants, launch_options(tiles))


def compile_launch(
    kernel: Any,
    programs: int,
    dtypes: Sequence[torch.dtype | None],
    scalars: Sequence[float],
    constants: dict[str, Any],
    options: dict[str, int],
) -> Launch:
    """Do the same as `prepare_launch`, given Triton's options, for a kernel that cannot be interpreted."""
    grid = (programs, 1, 1)
    # Launching the compiled kernel skips Triton's look-up by arguments, which takes as long as the launch.
    compiled = kernel.warmup(*dtypes, *scalars, grid=grid, **constants, **options)
    return launcher(compiled, grid, _arguments(kernel, scalars, constants))


def _arguments(kernel: Any, scalars: Sequence[float], constants: dict[str, Any]) -> tuple[Any, ...]:
    """Return all arguments but the tensors in a compiled kernel's order: compile-time ones last."""
    return (*scalars, *(constants[name] for name in kernel.arg_names if name in constants))


def like(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a template, one number expanded to a shape, from which `torch.empty_like` makes a contiguous tensor.

    That takes half the time of `torch.empty` with a shape, a dtype and a device.
    """
    return _number(dtype, device).expand(shape)


@functools.cache
def _number(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(1, dtype=dtype, device=device)


def launch_options(tiles: TileConfig) -> dict[str, int]:
    """Return Triton's options for a kernel with these tiles on the current GPU."""
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    if tiles.max_registers is not None:
        options["maxnreg"] = tiles.max_registers
    if gpu_of(torch.device("cuda")).is_hopper_or_later:
        options |= OVERLAPPED
    return options


def block_sizes(tiles: TileConfig) -> dict[str, int]:
    """Return the tile sizes as the kernels name them."""
    return {"BLOCK_QUERIES": tiles.block_queries, "BLOCK_KEYS": tiles.block_keys}


def band_bounds(band: Band) -> tuple[int, int]:
    """Return a mask's bounds as the kernels take them; a missing bound is an arbitrary number."""
    return 0 if band.start is None else band.start, 1 if band.end is None else band.end


def band_constants(band: Band) -> dict[str, bool]:
    """Return which bounds a mask has, under the kernels' names."""
    return {"HAS_START": band.start is not None, "HAS_END": band.end is not None}


def precision(problem: Problem) -> str:
    """Return how tensor cores multiply fp32: as three TF32 products, as one if that is allowed, or natively on AMD."""
    if gpu_of(problem.q.device).vendor == "amd":
        return "ieee"
    return "tf32x3" if problem.q.dtype == torch.float32 and not problem.one_tf32_product else "tf32"


def heads(given: Traits) -> int:
    """Count the heads; a tensor of three dimensions has one."""
    return given.shape[1] if len(given.shape) == 4 else 1


def heads_per_kv(q: Traits, k: Traits) -> int:
    """Return how many query heads share one head of keys and values."""
    return heads(q) // heads(k)


def tiles_of(side: Traits, block: int) -> int:
    """Count the tiles of queries or keys over all heads."""
    return math.prod(side.shape[:-2]) * triton.cdiv(side.shape[-2], block)


def strides(given: Traits) -> tuple[int, int, int]:
    """Return the strides of batch, head and row, as the kernels take them."""
    return given.stride[0], given.stride[1] if len(given.stride) == 4 else 0, given.stride[-2]


def tma_can_load(*read: Traits) -> bool:
    """Tell whether tensor descriptors can describe these matrices: aligned, with rows that do not overlap."""
    if not gpu_of(read[0].device).has_descriptors:
        return False
    aligned = all(stride * given.dtype.itemsize % ALIGNMENT_BYTES == 0 for given in read for stride in strides(given))
    return aligned and all(strides(given)[-1] > 0 for given in read)
