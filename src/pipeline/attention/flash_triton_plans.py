"""What a call of the Triton attention does, worked out from its inputs' traits: checks, grids, compiled kernels."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton import knobs

from pipeline.attention.flash_triton_backward import key_value_kernel, query_kernel, short_kernel
from pipeline.attention.flash_triton_configs import (
    HEAD_DIM_MULTIPLE,
    LONGEST_SHORT_SEQUENCE,
    MAX_HEAD_DIM,
    MIN_LENGTH_FOR_TMA,
    BackwardConfig,
    TileConfig,
    backward_config,
    chunk_keys,
    forward_config,
)
from pipeline.attention.flash_triton_delta import ROW_ALIGNMENT, delta_kernel
from pipeline.attention.flash_triton_forward import combine_kernel, forward_kernel
from pipeline.attention.inputs import Traits, check_inputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ALIGNMENT_BYTES = 16  # of what tensor descriptors point to, and of what the kernels are compiled for
ELEMENTWISE = TileConfig(64, 64, num_warps=4, num_stages=1)  # kernels that only stream rows through
COMBINE_BLOCK_ROWS = 16
PLANS_KEPT = 4096


class Launch:
    """A kernel compiled for its arguments, with all of them but the tensors, which come first: call it with those."""

    def __init__(
        self,
        kernel: Any,
        programs: int,
        dtypes: Sequence[torch.dtype | None],
        scalars: Sequence[float],
        constants: dict[str, Any],
        tiles: TileConfig,
    ):
        # By position, as a compiled kernel takes them: the compile-time ones come last.
        ordered = [constants[name] for name in kernel.arg_names if name in constants]
        self._arguments = (*scalars, *ordered)
        grid = (programs, 1, 1)
        if knobs.runtime.interpret:
            self._run = kernel[grid]
        else:
            # Launching what was compiled leaves out the look-up by arguments, which takes as long as the launch.
            self._run = kernel.warmup(*dtypes, *scalars, grid=grid, **constants, **_launch_options(tiles))[grid]

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch the kernel on the current stream."""
        self._run(*tensors, *self._arguments)


@dataclass(frozen=True)
class ForwardPlan:
    """A forward pass: one kernel, or where the keys are cut into chunks two."""

    copied: tuple[bool, ...]
    chunks: int
    attend: Launch
    combine: Launch | None


@dataclass(frozen=True)
class BackwardPlan:
    """A backward pass: dq has a kernel of its own, or is summed by that of dk and dv and then scaled."""

    copied: tuple[bool, ...]
    delta_shape: tuple[int, ...]
    delta: Launch
    key_value: Launch
    query: Launch | None
    scale: float


@dataclass(frozen=True)
class ShortBackwardPlan:
    """A backward pass over short sequences: one kernel."""

    copied: tuple[bool, ...]
    gradients: Launch


def ready(plan: ForwardPlan | BackwardPlan | ShortBackwardPlan, *tensors: Tensor) -> list[Tensor]:
    """Return the tensors as the kernels read them: copies where theirs is a layout that the kernels do not."""
    return [
        tensor.clone(memory_format=torch.contiguous_format) if copied or tensor.data_ptr() % ALIGNMENT_BYTES else tensor
        for tensor, copied in zip(tensors, plan.copied, strict=True)
    ]


@functools.lru_cache(PLANS_KEPT)
def forward_plan(q: Traits, k: Traits, v: Traits, is_causal: bool, tf32_allowed: bool) -> ForwardPlan:
    """Plan a forward pass; raises ValueError for inputs that the kernels cannot do."""
    _check(q, k, v)
    n_queries, head_dim, n_keys = q.shape[-2], q.shape[-1], k.shape[-2]
    matrices = math.prod(q.shape[:-2])
    tiles = forward_config(q.dtype, head_dim, n_keys)
    programs = matrices * triton.cdiv(n_queries, tiles.block_queries)
    chunk = chunk_keys(programs, n_keys, tiles.block_queries, _multiprocessors(q.device))
    chunks = triton.cdiv(n_keys, chunk)
    constants = {"CAUSAL": is_causal, "HEAD_DIM": head_dim, "BLOCK_QUERIES": tiles.block_queries}
    part = q.dtype if chunks == 1 else torch.float32
    attend = Launch(
        forward_kernel,
        programs * chunks,
        [q.dtype] * 3 + [part, torch.float32],
        [*_strides(q), *_strides(k), *_strides(v), _heads(q), n_queries, n_keys, chunk, chunks, _scale_log2(q)],
        {
            **constants,
            "BLOCK_KEYS": tiles.block_keys,
            "CHUNKED": chunks > 1,
            "TMA": _uses_tma(n_keys, k, v),
            "PRECISION": _precision(q.dtype, tf32_allowed),
        },
        tiles,
    )
    copied = tuple(map(_must_be_copied, (q, k, v)))
    if chunks == 1:
        return ForwardPlan(copied, chunks, attend, None)
    rows = matrices * n_queries
    combine = Launch(
        combine_kernel,
        triton.cdiv(rows, COMBINE_BLOCK_ROWS),
        [torch.float32, torch.float32, q.dtype, torch.float32],
        [rows, n_queries, n_keys, chunk, chunks],
        {**constants, "BLOCK_ROWS": COMBINE_BLOCK_ROWS},
        ELEMENTWISE,
    )
    return ForwardPlan(copied, chunks, attend, combine)


@functools.lru_cache(PLANS_KEPT)
def backward_plan(
    q: Traits, k: Traits, v: Traits, do: Traits, is_causal: bool, tf32_allowed: bool
) -> BackwardPlan | ShortBackwardPlan:
    """Plan the backward pass of inputs that a forward pass has taken."""
    copied = tuple(map(_must_be_copied, (q, k, v, do)))
    lengths = [_heads(q), q.shape[-2], k.shape[-2], 1 / math.sqrt(q.shape[-1]), _scale_log2(q)]
    scalars = [*_strides(q), *_strides(k), *_strides(v), *_strides(do), *lengths]
    constants = {
        "CAUSAL": is_causal,
        "HEAD_DIM": q.shape[-1],
        "PRECISION": _precision(q.dtype, tf32_allowed),
    }
    config = backward_config(q.dtype, q.shape[-1])
    if max(q.shape[-2], k.shape[-2]) <= LONGEST_SHORT_SEQUENCE:
        return ShortBackwardPlan(copied, _short_kernel(config.short, q, k, scalars, constants))
    return BackwardPlan(
        copied,
        delta_shape=(*q.shape[:-2], triton.cdiv(q.shape[-2], ROW_ALIGNMENT.value) * ROW_ALIGNMENT.value),
        delta=_delta_kernel(q, do, sums_dq=config.query is None),
        key_value=_key_value_kernel(config, q, k, do, scalars, constants),
        query=_query_kernel(config.query, q, k, v, scalars, constants) if config.query else None,
        scale=1 / math.sqrt(q.shape[-1]),
    )


def _short_kernel(tiles: TileConfig, q: Traits, k: Traits, scalars: list[float], constants: dict[str, Any]) -> Launch:
    matrices = math.prod(q.shape[:-2])
    query_programs = matrices * triton.cdiv(q.shape[-2], tiles.block_queries)
    return Launch(
        short_kernel,
        query_programs + matrices * triton.cdiv(k.shape[-2], tiles.block_keys),
        [*[q.dtype] * 5, torch.float32, *[q.dtype] * 3],
        [*scalars, query_programs],
        {**constants, **_block_sizes(tiles)},
        tiles,
    )


def _delta_kernel(q: Traits, do: Traits, sums_dq: bool) -> Launch:
    return Launch(
        delta_kernel,
        math.prod(q.shape[:-2]) * triton.cdiv(q.shape[-2], ELEMENTWISE.block_queries),
        [q.dtype, q.dtype, *[torch.float32] * 3, torch.float32 if sums_dq else None],
        [*_strides(do), _heads(q), q.shape[-2]],
        {"HEAD_DIM": q.shape[-1], "BLOCK_QUERIES": ELEMENTWISE.block_queries, "ZERO_DQ_SUM": sums_dq},
        ELEMENTWISE,
    )


def _key_value_kernel(
    config: BackwardConfig, q: Traits, k: Traits, do: Traits, scalars: list[float], constants: dict[str, Any]
) -> Launch:
    tiles, sums_dq = config.key_value, config.query is None
    return Launch(
        key_value_kernel,
        math.prod(k.shape[:-2]) * triton.cdiv(k.shape[-2], tiles.block_keys),
        [*[q.dtype] * 4, *[torch.float32] * 2, torch.float32 if sums_dq else None, k.dtype, k.dtype],
        scalars,
        {
            **constants,
            **_block_sizes(tiles),
            "MASK_KEYS": sums_dq and k.shape[-2] % tiles.block_keys != 0,
            "ADD_DQ": sums_dq,
            "TMA": _uses_tma(q.shape[-2], q, do),
            "TMA_REDUCE": sums_dq and not knobs.runtime.interpret,  # the interpreter has no such operation
        },
        tiles,
    )


def _query_kernel(
    tiles: TileConfig, q: Traits, k: Traits, v: Traits, scalars: list[float], constants: dict[str, Any]
) -> Launch:
    return Launch(
        query_kernel,
        math.prod(q.shape[:-2]) * triton.cdiv(q.shape[-2], tiles.block_queries),
        [*[q.dtype] * 4, *[torch.float32] * 2, q.dtype],
        scalars,
        {**constants, **_block_sizes(tiles), "TMA": _uses_tma(k.shape[-2], k, v)},
        tiles,
    )


def _block_sizes(tiles: TileConfig) -> dict[str, int]:
    return {"BLOCK_QUERIES": tiles.block_queries, "BLOCK_KEYS": tiles.block_keys}


def _check(q: Traits, k: Traits, v: Traits) -> None:
    check_inputs(q, k, v, DTYPES)
    head_dim = q.shape[-1]
    if head_dim > MAX_HEAD_DIM or head_dim % HEAD_DIM_MULTIPLE:
        allowed = f"a multiple of {HEAD_DIM_MULTIPLE} from {HEAD_DIM_MULTIPLE} to {MAX_HEAD_DIM}"
        raise ValueError(f"head_dim is {head_dim}: must be {allowed}")
    if q.device.type != "cuda" and not knobs.runtime.interpret:
        raise ValueError(f"q is on {q.device}: Triton's kernels need a GPU")


def _launch_options(tiles: TileConfig) -> dict[str, int]:
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    return options if tiles.max_registers is None else {**options, "maxnreg": tiles.max_registers}


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _scale_log2(q: Traits) -> float:
    """Return what turns a product of q and k into an exponent of two."""
    return math.log2(math.e) / math.sqrt(q.shape[-1])


def _precision(dtype: torch.dtype, tf32_allowed: bool) -> str:
    return "tf32x3" if dtype == torch.float32 and not tf32_allowed else "tf32"


def _heads(given: Traits) -> int:
    return given.shape[1] if len(given.shape) == 4 else 1


def _must_be_copied(given: Traits) -> bool:
    return given.stride[-1] != 1 and given.shape[-1] != 1


def _strides(given: Traits) -> tuple[int, int, int]:
    """Return the strides of batch, head and row that the kernels see, which are those of the copy if there is one."""
    if _must_be_copied(given):
        row, matrix = given.shape[-1], given.shape[-1] * given.shape[-2]
        return matrix * _heads(given), matrix, row
    return given.stride[0], given.stride[1] if len(given.stride) == 4 else 0, given.stride[-2]


def _uses_tma(length: int, *read: Traits) -> bool:
    """Tell whether blocks of these matrices' rows are loaded through tensor descriptors, which want alignment."""
    aligned = all(stride * given.dtype.itemsize % ALIGNMENT_BYTES == 0 for given in read for stride in _strides(given))
    return length >= MIN_LENGTH_FOR_TMA and aligned and all(_strides(given)[-1] > 0 for given in read)
