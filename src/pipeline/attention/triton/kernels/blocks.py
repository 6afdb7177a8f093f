"""Load and multiply blocks of matrices and rows in the Triton kernels.

Tiles are a power of two wide. Columns past head_dim are loaded as 0, which adds nothing to any product, and are not
stored.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

from pipeline.attention.triton.tiles import tile_width
from pipeline.compat.triton_private import is_interpreted

INTERPRETED = tl.constexpr(is_interpreted())


@triton.jit
def wait_for_kernel_before():
    """Wait until the previous kernel has ended: from Hopper on, a kernel is launched while that one still runs.

    Every kernel does this first: even the memory for its tensor descriptors may still be in use by the previous one.
    """
    if not INTERPRETED and tl.target_info.cuda_capability_geq(9):
        gdc_wait()


@triton.jit
def matrix_at(pointer, batch_head, heads, stride_batch, stride_head):
    """Return the pointer to the (rows, head_dim) matrix of one batch element and head."""
    batch, head = (batch_head // heads).to(tl.int64), (batch_head % heads).to(tl.int64)
    return pointer + batch * stride_batch + head * stride_head


@triton.jit
def columns(HEAD_DIM: tl.constexpr):
    """Return the indices of a tile's columns, (1, width)."""
    return tl.arange(0, tile_width(HEAD_DIM))[None, :]


@triton.jit
def within(row_exists, HEAD_DIM: tl.constexpr):
    """Return the mask of a tile: the rows that exist, and the columns within head_dim."""
    if tile_width(HEAD_DIM) == HEAD_DIM:
        return row_exists[:, None]
    else:
        return row_exists[:, None] & (columns(HEAD_DIM) < HEAD_DIM)


@triton.jit
def rows_of(pointer, length, stride, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr):
    """Return what `load_rows` reads blocks of rows from: a tensor descriptor, or just the pointer."""
    if TMA:
        return tl.make_tensor_descriptor(pointer, [length, HEAD_DIM], [stride, 1], [BLOCK, tile_width(HEAD_DIM)])
    else:
        return pointer


@triton.jit
def load_rows(
    source, start, length, stride, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, TMA: tl.constexpr, CHECK: tl.constexpr
):
    """Load BLOCK rows from `start` on; those from `length` on are 0 (CHECK: there may be such rows)."""
    if TMA:
        return source.load([start, 0])
    else:
        rows = start + tl.arange(0, BLOCK)
        # In 64 bits: even the rows of one block may lie more than 2^31 elements apart.
        pointers = source + rows.to(tl.int64)[:, None] * stride + columns(HEAD_DIM)
        if CHECK or tile_width(HEAD_DIM) != HEAD_DIM:
            return tl.load(pointers, mask=within(rows < length, HEAD_DIM), other=0.0)
        else:
            return tl.load(pointers)


@triton.jit
def row_of(pointer, length, BLOCK: tl.constexpr, TMA: tl.constexpr):
    """Return what `load_row` reads blocks of a row from: a tensor descriptor, or just the pointer."""
    if TMA:
        return tl.make_tensor_descriptor(pointer, [length], [1], [BLOCK])
    else:
        return pointer


@triton.jit
def load_row(source, start, length, BLOCK: tl.constexpr, TMA: tl.constexpr):
    """Load BLOCK numbers from `start` on; those from `length` on are 0."""
    if TMA:
        return source.load([start])
    else:
        index = start + tl.arange(0, BLOCK)
        return tl.load(source + index, mask=index < length, other=0.0)


@triton.jit
def product(a, b, accumulator, PRECISION: tl.constexpr, TWO_SUMS: tl.constexpr = False):
    """Return a b, plus the accumulator unless that is None, in fp32.

    PRECISION: "tf32x3" multiplies fp32 as three TF32 products, "tf32" as one, "ieee" as it is; for 16 bits, "tf32" and
    "ieee" are the same. TWO_SUMS: of the three products, the large one may be summed apart from the small ones, which
    does not give the same bits.
    """
    if PRECISION == "tf32x3":
        # With fewer than 64 rows, products use mma.sync, not wgmma, and those of one sum wait for each other.
        total = _three_products(a, b, TWO_SUMS and a.shape[0] < 64)
        # Added outside the tensor core, whose truncation would cost two of fp32's seven digits over thousands of tiles.
        return total if accumulator is None else accumulator + total
    elif INTERPRETED:  # the interpreter would multiply the bit patterns of bf16
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator)
    else:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def _three_products(a, b, TWO_SUMS: tl.constexpr):
    """Return a b as the sum of the products of both factors' TF32 parts, except the smallest.

    Gives the same numbers as Triton's own "tf32x3" with fewer instructions: that one checks for NaN before it rounds a
    number, and clears NaN from the sum of the small products.
    """
    a_high, a_low = tf32_parts(a)
    b_high, b_low = tf32_parts(b)
    if TWO_SUMS:  # by subtraction, because Triton would merge two sums that are added
        negative = tl.dot(a_high, -b_low, tl.dot(-a_low, b_high, input_precision="tf32"), input_precision="tf32")
        return tl.dot(a_high, b_high, input_precision="tf32") - negative
    else:
        small = tl.dot(a_high, b_low, tl.dot(a_low, b_high, input_precision="tf32"), input_precision="tf32")
        return tl.dot(a_high, b_high, small, input_precision="tf32")


@triton.jit
def tf32_parts(x):
    """Return the nearest TF32 number (ties away from 0) and the exact remainder, which is NaN for inf."""
    high = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high
