"""Products of fp32 matrices as six products of their bf16 parts; used by all kernels here.

Three parts of 8 bits hold the 24 bits of an fp32 number. Of the nine products of two numbers' parts, the three smallest
are left out, which are about 2^-24 of the largest or less. The six are summed from smallest to largest and from 0 for
every tile, because a tensor core truncates what it adds to a sum. Source: Ootomo and Yokota 2022, with bf16 in place of
TF32.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma

from pipeline.attention.triton.gluon.pieces import load, opaque
from pipeline.attention.triton.kernels.parts import PARTS

PRODUCTS = gl.constexpr(6)
# Split two numbers, $3 and $4, into three pairs, each the rounded remainder of those before. Two at a time, because
# converting one at a time takes four times as long.
SPLIT = gl.constexpr("""{
    .reg .f32 a, b, c, d;
    .reg .b32 e, f;
    cvt.rn.bf16x2.f32 $0, $4, $3;
    shl.b32 e, $0, 16;
    and.b32 f, $0, 0xffff0000;
    mov.b32 c, e;
    mov.b32 d, f;
    sub.f32 a, $3, c;
    sub.f32 b, $4, d;
    cvt.rn.bf16x2.f32 $1, b, a;
    shl.b32 e, $1, 16;
    and.b32 f, $1, 0xffff0000;
    mov.b32 c, e;
    mov.b32 d, f;
    sub.f32 a, a, c;
    sub.f32 b, b, d;
    cvt.rn.bf16x2.f32 $2, b, a;
}""")
# Product i multiplies part OF_LEFT[i] of q, do, weights or dS by part OF_RIGHT[i] of the other factor.
OF_LEFT, OF_RIGHT = (2, 0, 1, 1, 0, 0), (0, 2, 1, 0, 1, 0)


@gluon.constexpr_function
def _left(i, mirrored):
    return (OF_RIGHT if mirrored else OF_LEFT)[i]


@gluon.constexpr_function
def _right(i, mirrored):
    return (OF_LEFT if mirrored else OF_RIGHT)[i]


@gluon.jit
def start_scores(a_tiles, a_at, b_tiles, b_at, no_scores, MIRRORED: gl.constexpr):
    """Start computing a bᵀ of two blocks, whose parts begin at tiles `a_at` and `b_at` of shared memory.

    MIRRORED: sum in the order of b aᵀ, so that the result is its transpose to the last bit.
    """
    scores = no_scores
    a_at, b_at = opaque(a_at), opaque(b_at)
    for i in gl.static_range(PRODUCTS):
        a = a_tiles.index(a_at + _left(i, MIRRORED))
        b = b_tiles.index(b_at + _right(i, MIRRORED))
        scores = warpgroup_mma(a, b.permute((1, 0)), scores, use_acc=i > 0, is_async=True)
    return scores


@gluon.jit
def start_product(a_parts, b_tiles, b_at, no_sum):
    """Start computing a b, with a's parts in registers and b's in shared memory, beginning at tile `b_at`."""
    total = no_sum
    b_at = opaque(b_at)
    for i in gl.static_range(PRODUCTS):
        b = b_tiles.index(b_at + _right(i, False))
        total = warpgroup_mma(a_parts[_left(i, False)], b, total, use_acc=i > 0, is_async=True)
    return total


@gluon.jit
def in_parts(x, LAYOUT: gl.constexpr):
    """Split fp32 numbers into three bf16 parts, laid out as the operand of a product."""
    first, second, third = gl.inline_asm_elementwise(
        SPLIT, "=&r,=&r,=r,f,f", [x], [gl.bfloat16, gl.bfloat16, gl.bfloat16], is_pure=True, pack=2
    )
    return (
        gl.convert_layout(first, LAYOUT, assert_trivial=True),
        gl.convert_layout(second, LAYOUT, assert_trivial=True),
        gl.convert_layout(third, LAYOUT, assert_trivial=True),
    )


@gluon.jit
def load_parts(descriptor, matrix, n_matrices, row, full, tiles, at):
    """Start copying the parts of a block of rows into tiles, one per part, from number `at` on."""
    for part in gl.static_range(PARTS):
        load(descriptor, part * n_matrices + matrix, PARTS * n_matrices, row, full, tiles.index(at + part))


@gluon.jit
def store_rows(pointer, matrix, first_row, n_rows, x, HEAD_DIM: gl.constexpr):
    """Write a block of rows of a contiguous (matrices, rows, head_dim)."""
    LAYOUT: gl.constexpr = x.type.layout
    rows = first_row + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT))
    columns = gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))
    offsets = (matrix.to(gl.int64) * n_rows + rows)[:, None] * HEAD_DIM + columns[None, :]
    gl.store(pointer + offsets, x, mask=(rows < n_rows)[:, None] & (columns < HEAD_DIM)[None, :])
