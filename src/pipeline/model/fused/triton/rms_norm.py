"""RMSNorm in Triton, fused with the sum before it and, in the backward pass, with a gradient to add to dx.

Source: Zhang and Sennrich 2019, equation 4. With x̂ = x / rms(x) and y = w · x̂, and means over a row:
dx = (w · dy − x̂ · mean(w · dy · x̂)) / rms(x), and dw sums dy · x̂ over the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from pipeline.attention.triton.gpu import KIB, Gpu, gpu_of

# Rows, on average at least, over which a backward program sums dw: fewer programs leave fewer sums to add up.
LEAST_ROWS = 4
# The backward pass loads rows ahead into shared memory, up to so many, until this much is under way on a
# multiprocessor: more gained nothing on an H200 (1,024 to 4,096 columns, bf16). A program has a multiprocessor to
# itself if its rows are large.
BYTES_UNDER_WAY, MOST_ROWS_AHEAD, LARGE_ROW_BYTES = 72 * KIB, 5, 8 * KIB
SCRATCH_BYTES = 16 * KIB  # of shared memory that a program keeps for Triton, which uses up to 8 KiB
BLOCK_PARTS, BLOCK_COLUMNS = 64, 16
MAX_WIDTH = 65_536  # a row is one block


@triton.jit
def _load(row_ptr, width, BLOCK: tl.constexpr):
    """Load a row in fp32, with zeros past its end."""
    columns = tl.arange(0, BLOCK)
    return tl.load(row_ptr + columns, mask=columns < width, other=0.0).to(tl.float32)


@triton.jit
def _store(row_ptr, values, width, BLOCK: tl.constexpr):
    columns = tl.arange(0, BLOCK)
    tl.store(row_ptr + columns, values, mask=columns < width)


@triton.jit
def rms_norm_forward_kernel(
    x_ptr, addend_ptr, weight_ptr, sum_ptr, y_ptr, width, eps, BLOCK: tl.constexpr, ADD: tl.constexpr
):
    """Normalise one row of x, or of x + addend, which is then written too."""
    start = tl.program_id(0).to(tl.int64) * width
    x = _load(x_ptr + start, width, BLOCK)
    if ADD:
        # Round it as it is stored, so that the backward pass works with the same numbers.
        x = (x + _load(addend_ptr + start, width, BLOCK)).to(sum_ptr.dtype.element_ty).to(tl.float32)
        _store(sum_ptr + start, x, width, BLOCK)
    reciprocal_rms = 1 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
    _store(y_ptr + start, x * reciprocal_rms * _load(weight_ptr, width, BLOCK), width, BLOCK)


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, addend_ptr, dx_ptr, dw_parts_ptr, rows, width, eps, BLOCK: tl.constexpr,
    ADD: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Compute dx of every n-th row, of n programs, plus an addend, and the sum of dw over these rows."""
    program, programs = tl.program_id(0).to(tl.int64), tl.num_programs(0)
    weight = _load(weight_ptr, width, BLOCK)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(program, rows, programs, num_stages=STAGES):
        start = row * width
        x, dy = _load(x_ptr + start, width, BLOCK), _load(dy_ptr + start, width, BLOCK)
        reciprocal_rms = 1 / tl.sqrt(tl.sum(x * x, 0) / width + eps)
        normal = x * reciprocal_rms
        weighted = dy * weight
        dx = (weighted - normal * (tl.sum(weighted * normal, 0) / width)) * reciprocal_rms
        if ADD:
            dx += _load(addend_ptr + start, width, BLOCK)
        _store(dx_ptr + start, dx, width, BLOCK)
        dw += dy * normal
    _store(dw_parts_ptr + program * width, dw, width, BLOCK)


@triton.jit
def sum_of_parts_kernel(parts_ptr, sum_ptr, parts, width, BLOCK_PARTS: tl.constexpr, BLOCK_COLUMNS: tl.constexpr):
    """Sum some columns over all parts, and round once."""
    columns = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)[None, :]
    total = tl.zeros((BLOCK_PARTS, BLOCK_COLUMNS), tl.float32)
    for first in range(0, parts, BLOCK_PARTS):
        part = first + tl.arange(0, BLOCK_PARTS)[:, None]
        total += tl.load(parts_ptr + part * width + columns, mask=(part < parts) & (columns < width), other=0.0)
    columns = tl.program_id(0) * BLOCK_COLUMNS + tl.arange(0, BLOCK_COLUMNS)
    tl.store(sum_ptr + columns, tl.sum(total, 0), mask=columns < width)


def rms_norm(x: Tensor, weight: Tensor, eps: float, addend: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return s = x, or x + addend, and its RMSNorm times `weight`; both have the dtype of x.

    Shapes: x and addend are (rows, width), contiguous; weight is (width,). Raises ValueError for a width above 65,536.
    """
    rows, width = _shape(x)
    y, total = torch.empty_like(x), x if addend is None else torch.empty_like(x)
    constants = {"BLOCK": triton.next_power_of_2(width), "ADD": addend is not None}
    rms_norm_forward_kernel[(rows,)](x, addend, weight, total, y, width, eps, num_warps=_warps(width), **constants)
    return total, y


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, eps: float, addend: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, plus an addend, and that of the weight.

    Shapes as in `rms_norm`. Sums are kept in fp32 and rounded once; the order of the weight's depends on the GPU's
    number of multiprocessors.
    """
    rows, width = _shape(x)
    programs, rows_ahead = _backward_grid(rows, width, x.element_size(), 2 if addend is None else 3, gpu_of(x.device))
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    dw_parts = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    constants = {"BLOCK": triton.next_power_of_2(width), "ADD": addend is not None, "STAGES": 1 + rows_ahead}
    rms_norm_backward_kernel[(programs,)](
        dy, x, weight, addend, dx, dw_parts, rows, width, eps, num_warps=_warps(width), **constants
    )
    sum_of_parts_kernel[(triton.cdiv(width, BLOCK_COLUMNS),)](
        dw_parts, dweight, programs, width, BLOCK_PARTS=BLOCK_PARTS, BLOCK_COLUMNS=BLOCK_COLUMNS
    )
    return dx, dweight


def _shape(x: Tensor) -> tuple[int, int]:
    rows, width = x.shape
    if width > MAX_WIDTH:
        raise ValueError(f"width must be at most {MAX_WIDTH}, got {width}")
    return rows, width


def _backward_grid(rows: int, width: int, element_bytes: int, tensors: int, gpu: Gpu) -> tuple[int, int]:
    """Return how many programs a backward pass has, and how many rows of these tensors each loads ahead."""
    row_bytes, block_bytes = width * element_bytes, triton.next_power_of_2(width) * element_bytes
    programs_per_sm = 1 if block_bytes >= LARGE_ROW_BYTES else 2
    together = tensors * programs_per_sm
    wanted = triton.cdiv(BYTES_UNDER_WAY, together * row_bytes)
    that_fit = (gpu.shared_bytes - programs_per_sm * SCRATCH_BYTES) // (together * block_bytes)
    programs = min(max(1, rows // LEAST_ROWS), programs_per_sm * gpu.multiprocessors)
    return programs, min(wanted, that_fit, MOST_ROWS_AHEAD)


def _warps(width: int) -> int:
    """Return the number of warps that gives each thread about 16 numbers of a row."""
    return min(16, max(1, triton.next_power_of_2(width) // 512))
