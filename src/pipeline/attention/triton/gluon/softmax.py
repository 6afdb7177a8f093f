"""Online softmax of a warpgroup's scores, block after block, in which threads rarely synchronise.

The number subtracted from a row's scores before `exp2` need not be their maximum: any number that keeps weights from
overflowing will do, because the output is divided by the sum of weights at the end. So a warp raises the maxima of its
16 rows only if a score exceeds its row's by more than SLACK. Weights are then at most 2^SLACK, and rounded no worse.
FlashAttention-4 does the same on Blackwell.

Each row is split over four threads: thread t holds scores 8i + 2t and 8i + 2t + 1 of two rows, 8 apart. With scores
viewed as (rows, i, t, 2), reductions along i and the last dimension stay within a thread.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

SLACK = 8  # in log2 units
ROWS_OF_THREAD = gl.constexpr(2)

# For a thread's two rows: $0 and $1 are the new maxima; $2 and $3 the factors for sums so far; $4 and $5 the thread's
# largest scores; $6 and $7 the maxima so far; $8 and $9 the scale. If no row of a warp grows by more than SLACK, all
# stays as it is; otherwise the four threads of each row agree on its maximum.
RAISE = gl.constexpr(f"""{{
    .reg .pred grows, any;
    .reg .f32 a, b, over;
    mul.f32 a, $4, $8;
    mul.f32 b, $5, $8;
    mov.f32 $0, $6;
    mov.f32 $1, $7;
    mov.f32 $2, 1.0;
    mov.f32 $3, 1.0;
    sub.f32 over, a, $6;
    setp.gt.f32 grows, over, {SLACK}.0;
    sub.f32 over, b, $7;
    setp.gt.or.f32 grows, over, {SLACK}.0, grows;
    vote.sync.any.pred any, grows, 0xffffffff;
    @!any bra done;
    shfl.sync.bfly.b32 $0, a, 2, 31, 0xffffffff;
    shfl.sync.bfly.b32 $1, b, 2, 31, 0xffffffff;
    max.f32 a, a, $0;
    max.f32 b, b, $1;
    shfl.sync.bfly.b32 $0, a, 1, 31, 0xffffffff;
    shfl.sync.bfly.b32 $1, b, 1, 31, 0xffffffff;
    max.f32 a, a, $0;
    max.f32 b, b, $1;
    max.f32 $0, a, $6;
    max.f32 $1, b, $7;
    sub.f32 a, $6, $0;
    sub.f32 b, $7, $1;
    ex2.approx.ftz.f32 $2, a;
    ex2.approx.ftz.f32 $3, b;
done:
}}""")


@gluon.jit
def first_weights(s, scale_log2, DTYPE: gl.constexpr):
    """Return the weights of the first scores, (rows, keys), and maxima and sums per row and thread, (rows, 4)."""
    scores = _by_thread(s)
    of_thread = _maxima(scores)
    of_row, _ = gl.broadcast(gl.expand_dims(gl.max(of_thread, 1), 1), of_thread)
    maximum = of_row * scale_log2
    weights, total = _weights_and_sums(scores, maximum, scale_log2)
    return gl.reshape(weights.to(DTYPE), s.shape), maximum, total


@gluon.jit
def more_weights(s, maximum, total, scale_log2, DTYPE: gl.constexpr):
    """Return the weights of more scores, the updated maxima and sums, and the factor for the output so far."""
    scores = _by_thread(s)
    maximum, rescale = gl.inline_asm_elementwise(
        RAISE,
        "=&f,=&f,=&f,=&f,f,f,f,f,f,f",
        [_maxima(scores), maximum, scale_log2],
        [gl.float32, gl.float32],
        is_pure=False,  # threads synchronise in it, so no compiler may move it into a branch
        pack=ROWS_OF_THREAD,
    )
    weights, found = _weights_and_sums(scores, maximum, scale_log2)
    return gl.reshape(weights.to(DTYPE), s.shape), maximum, total * rescale + found, rescale


@gluon.jit
def _by_thread(x):
    """View (rows, columns), laid out as wgmma gives it, as (rows, columns / 8, 4, 2)."""
    return gl.reshape(x, [x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def _of_scores(x):
    """View (rows, 4), a number per row and thread, so that it broadcasts to scores by thread."""
    return gl.expand_dims(gl.expand_dims(x, 1), 3)


@gluon.jit
def _maxima(scores):
    return gl.max(gl.max(scores, 3), 1)


@gluon.jit
def _weights_and_sums(scores, maximum, scale_log2):
    weights = gl.exp2(scores * scale_log2 - _of_scores(maximum))
    return weights, gl.sum(gl.sum(weights, 3), 1)


@gluon.constexpr_function
def _multiplication(n):
    """Return PTX that multiplies a thread's n numbers, from $n on, by as many factors, unless all of a warp's are 1.

    Pairs of numbers alternate between the thread's two rows, so the first and third factor are the only distinct ones.
    """
    copies = [f"mov.f32 ${i}, ${n + i};" for i in range(n)]
    products = [f"mul.f32 ${i}, ${i}, ${2 * n + i};" for i in range(n)]
    of_rows = f"${2 * n}", f"${2 * n + 2}"
    return "\n".join(
        [
            "{ .reg .pred changes, any;",
            *copies,
            f"setp.neu.f32 changes, {of_rows[0]}, 1.0;",
            f"setp.neu.or.f32 changes, {of_rows[1]}, 1.0, changes;",
            "vote.sync.any.pred any, changes, 0xffffffff;",
            "@!any bra done;",
            *products,
            "done: }",
        ]
    )


@gluon.constexpr_function
def _operands(n):
    return ",".join(["=&f"] * n + ["f"] * 2 * n)


@gluon.jit
def rescaled(o, factor):
    """Multiply sums (rows, head_dim) by a factor per row and thread; a warp whose factors are all 1 skips it."""
    COUNT: gl.constexpr = o.shape[1] // 2  # per thread
    CODE: gl.constexpr = _multiplication(COUNT)
    OPERANDS: gl.constexpr = _operands(COUNT)
    sums = _by_thread(o)
    LAYOUT: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(3, sums.type.layout))
    factors = _of_scores(gl.convert_layout(factor, LAYOUT, assert_trivial=True))
    found = gl.inline_asm_elementwise(CODE, OPERANDS, [sums, factors], gl.float32, is_pure=False, pack=COUNT)
    return gl.convert_layout(gl.reshape(found, o.shape), o.type.layout, assert_trivial=True)


@gluon.jit
def sums_and_lse(total, maximum, ROW: gl.constexpr):
    """Return each row's sum of weights and its base-2 LSE, (rows,)."""
    sums = gl.convert_layout(gl.sum(total, 1), ROW)
    return sums, gl.convert_layout(gl.max(maximum, 1), ROW) + gl.log2(sums)
