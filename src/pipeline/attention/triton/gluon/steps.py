"""One step of a warpgroup of the Hopper backward kernel: a block of 64 queries as a whole, or one of 128 in halves.

The order of the lines was chosen by measurement (docs/attention-kernels.md): exponentials, stores to shared memory and
the fences after them run while products do.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from pipeline.attention.triton.gluon.moving import (
    ALL_THREADS,
    DO_FREE,
    DQ_COLUMNS,
    DQ_FREE,
    DQ_FULL,
    DQ_THREADS,
    DS_FULL,
    FREE_THREADS,
    GROUPS,
    KEYS,
    PARTS_WIDTH,
    Q_FREE,
    by_thread,
)
from pipeline.attention.triton.gluon.pieces import arrive, arrive_and_wait, opaque
from pipeline.attention.triton.kernels.parts import PARTS

STAGES = gl.constexpr(2)  # blocks of queries in flight, each with two named barriers


@gluon.jit
def _scores(keys, queries, keys_tail, queries_tail, numbers, LAYOUT: gl.constexpr, TAIL: gl.constexpr):
    """Start computing keys · queriesᵀ, (64, queries), or values · doᵀ, plus a number for each query.

    numbers: those per query, in bf16 parts, which a product with ones adds to the row of every key.
    """
    QUERIES: gl.constexpr = queries.shape[0]
    ONES_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, LAYOUT, 2)
    part = gl.arange(0, PARTS_WIDTH, gl.SliceLayout(0, ONES_LAYOUT))[None, :]
    part += gl.zeros([KEYS, PARTS_WIDTH], gl.int32, ONES_LAYOUT)
    ones = gl.where(part < PARTS, 1.0, 0.0).to(gl.bfloat16)
    found = gl.zeros([KEYS, QUERIES], gl.float32, LAYOUT)
    found = warpgroup_mma(keys, queries.permute((1, 0)), found, use_acc=False, is_async=True)
    if TAIL:
        found = warpgroup_mma(keys_tail, queries_tail.permute((1, 0)), found, is_async=True)
    return warpgroup_mma(ones, numbers.permute((1, 0)), found, is_async=True)


@gluon.jit
def _weights(
    s, first_query, first_key, n_keys, scale_log2, MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr
):
    """Return the weights of scores, (64 keys, queries), from which LSE is already subtracted."""
    LAYOUT: gl.constexpr = s.type.layout
    p = gl.exp2(s * scale_log2)
    if MASKED:
        keys = (first_key + gl.arange(0, KEYS, gl.SliceLayout(1, LAYOUT)))[:, None]
        if CAUSAL:
            queries = first_query + gl.arange(0, s.shape[1], gl.SliceLayout(0, LAYOUT))
            p = gl.where(keys <= queries[None, :], p, 0.0)
        if MASK_KEYS:
            # A key past the end has score 0, maybe far above all real ones: its weight may be infinite, times 0 NaN.
            p = gl.where(keys < n_keys, p, 0.0)
    return p


@gluon.jit
def _leave_dq(dq_part, tile, GROUP: gl.constexpr):
    """Store a part of dq in shared memory once the warp that adds has read the one before; see `hand_over_dq`."""
    arrive_and_wait(DQ_FREE + GROUP, DQ_THREADS)
    tile.store(by_thread(dq_part))


@gluon.jit
def hand_over_dq(step, GROUP: gl.constexpr):
    """Hand the part of dq that the previous step, if any, stored to the warp that adds.

    It comes late, while the next products run: the fence that shows a store to the copy engine takes some 500 clocks.
    """
    if step > 0:
        fence_async_shared()
        arrive(DQ_FULL + GROUP, DQ_THREADS)


@gluon.jit
def step_of_one(
    dk, dv, dk_tail, dv_tail, block, step, first_key, n_keys, scale_log2, tiles, tails, numbers, ds_tiles, dq_tiles,
    q_full, do_full, MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, WIDTH: gl.constexpr,
    TAIL: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add a block of 64 queries to a warpgroup's dk and dv, and compute its columns of the block's dq."""
    DTYPE: gl.constexpr = ds_tiles.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    TAIL_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, TAIL or WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)  # of weights and dS, which stay in registers
    A_TAIL_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, TAIL_LAYOUT, 2)
    DQ_WIDTH: gl.constexpr = dq_tiles[GROUP].shape[0] * DQ_COLUMNS // KEYS
    DQ_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DQ_WIDTH, 16])
    PRODUCTS: gl.constexpr = 2 if TAIL else 1  # that make up one over all columns
    # Opaque: the addresses of all tiles, kept over the loop, would leave too few registers.
    own = opaque(GROUP)
    slot, phase = step % STAGES, step // STAGES % 2
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    q, do = q_tiles.index(slot), do_tiles.index(slot)
    k_tail, v_tail, q_tail, do_tail = tails[0], tails[1], tails[2], tails[3]
    if TAIL:
        k_tail, v_tail = k_tail.index(own), v_tail.index(own)
        q_tail, do_tail = q_tail.index(slot), do_tail.index(slot)
    mbarrier.wait(q_full.index(slot), phase)
    s_coming = _scores(k_tiles.index(own), q, k_tail, q_tail, numbers[0].index(slot), S_LAYOUT, TAIL)
    mbarrier.wait(do_full.index(slot), phase)
    dp_coming = _scores(v_tiles.index(own), do, v_tail, do_tail, numbers[1].index(slot), S_LAYOUT, TAIL)
    hand_over_dq(step, GROUP)
    s = warpgroup_mma_wait(PRODUCTS + 1, deps=[s_coming])
    p = _weights(s, block * KEYS, first_key, n_keys, scale_log2, MASKED, CAUSAL, MASK_KEYS)
    weights = gl.convert_layout(p.to(DTYPE), A_LAYOUT)
    dp = warpgroup_mma_wait(0, deps=[dp_coming])
    ds = (p * dp).to(DTYPE)
    dv_coming = warpgroup_mma(weights, do, dv, is_async=True)
    if TAIL:
        # dk here too: parts of dq have two widths, and this keeps the warpgroup with the narrow one busy as it waits.
        tail_weights = gl.convert_layout(weights, A_TAIL_LAYOUT)
        dv_tail_coming = warpgroup_mma(tail_weights, do_tail, dv_tail, is_async=True)
        ds_operand = gl.convert_layout(ds, A_LAYOUT)
        dk_coming = warpgroup_mma(ds_operand, q, dk, is_async=True)
        tail_operand = gl.convert_layout(ds_operand, A_TAIL_LAYOUT)
        dk_tail_coming = warpgroup_mma(tail_operand, q_tail, dk_tail, is_async=True)
    buffer = step % 2
    ds_tiles.index(buffer * GROUPS + GROUP).store(ds)
    fence_async_shared()
    # With a causal mask or a tail, warpgroups were seen to drift apart. So each multiplies its own dS (Triton makes its
    # warps wait for each other's part) before it waits for the other's. It may be a step ahead, hence separate barriers
    # for even and odd steps.
    DRIFT: gl.constexpr = 1 if CAUSAL or TAIL else 0
    if DRIFT:
        arrive(DS_FULL + (1 - GROUP) * 2 + buffer, ALL_THREADS)
    else:
        arrive_and_wait(DS_FULL, ALL_THREADS)
    dq_coming = gl.zeros([KEYS, DQ_WIDTH], gl.float32, DQ_LAYOUT)
    for turn in gl.static_range(GROUPS):
        if DRIFT and turn == 1:
            arrive_and_wait(DS_FULL + GROUP * 2 + buffer, ALL_THREADS)
        ds_of = ds_tiles.index(buffer * GROUPS + (GROUP * DRIFT + turn) % GROUPS).permute((1, 0))
        if not TAIL:
            k_of = k_tiles.index((GROUP * DRIFT + turn) % GROUPS).slice(GROUP * DQ_WIDTH, DQ_WIDTH, 1)
        elif GROUP == 1:
            k_of = tails[0].index((GROUP * DRIFT + turn) % GROUPS)
        else:
            k_of = k_tiles.index((GROUP * DRIFT + turn) % GROUPS)
        dq_coming = warpgroup_mma(ds_of, k_of, dq_coming, use_acc=turn > 0, is_async=True)
    if TAIL:
        dv, dv_tail, weights, tail_weights = warpgroup_mma_wait(
            GROUPS, deps=[dv_coming, dv_tail_coming, weights, tail_weights]
        )
        dk, dk_tail, ds_operand, tail_operand = warpgroup_mma_wait(
            GROUPS, deps=[dk_coming, dk_tail_coming, ds_operand, tail_operand]
        )
        arrive(DO_FREE + slot, FREE_THREADS)
        arrive(Q_FREE + slot, FREE_THREADS)
        _leave_dq(warpgroup_mma_wait(0, deps=[dq_coming]), dq_tiles[GROUP], GROUP)
    else:
        dv, weights = warpgroup_mma_wait(GROUPS, deps=[dv_coming, weights])
        arrive(DO_FREE + slot, FREE_THREADS)
        ds_operand = gl.convert_layout(ds, A_LAYOUT)
        dk_coming = warpgroup_mma(ds_operand, q, dk, is_async=True)
        _leave_dq(warpgroup_mma_wait(1, deps=[dq_coming]), dq_tiles[GROUP], GROUP)
        dk, ds_operand = warpgroup_mma_wait(0, deps=[dk_coming, ds_operand])
        arrive(Q_FREE + slot, FREE_THREADS)
    return dk, dv, dk_tail, dv_tail


@gluon.jit
def step_of_halves(
    dk, dv, block, step, first_key, n_keys, scale_log2, tiles, numbers, ds_tiles, dq_tiles, q_full, do_full,
    MASKED: gl.constexpr, CAUSAL: gl.constexpr, MASK_KEYS: gl.constexpr, WIDTH: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    """Add a block of 128 queries to a warpgroup's dk and dv, and compute dq of one half of the queries.

    The first half's weights are computed while the second's scores run, the second's while dk and dv of the first run.
    Scores and their gradients of a half also take half the registers.
    """
    DTYPE: gl.constexpr = ds_tiles.dtype
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KEYS, 16])
    G_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, WIDTH, 16])
    A_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, G_LAYOUT, 2)  # of weights and dS, which stay in registers
    # With two copies of a step, masked and not, the addresses of all tiles would leave too few registers.
    own = opaque(GROUP) if CAUSAL or MASK_KEYS else GROUP
    slot, phase, buffer = step % STAGES, step // STAGES % 2, step % 2
    q_tiles, k_tiles, v_tiles, do_tiles = tiles
    k, v = k_tiles.index(own), v_tiles.index(own)
    q, do, lse, delta = q_tiles.index(slot), do_tiles.index(slot), numbers[0].index(slot), numbers[1].index(slot)
    q0, do0, lse0, delta0 = q.slice(0, KEYS, 0), do.slice(0, KEYS, 0), lse.slice(0, KEYS, 0), delta.slice(0, KEYS, 0)
    q1, do1 = q.slice(KEYS, KEYS, 0), do.slice(KEYS, KEYS, 0)
    lse1, delta1 = lse.slice(KEYS, KEYS, 0), delta.slice(KEYS, KEYS, 0)
    mbarrier.wait(q_full.index(slot), phase)
    s0 = _scores(k, q0, 0, 0, lse0, S_LAYOUT, 0)
    mbarrier.wait(do_full.index(slot), phase)
    dp0 = _scores(v, do0, 0, 0, delta0, S_LAYOUT, 0)
    s1 = _scores(k, q1, 0, 0, lse1, S_LAYOUT, 0)
    hand_over_dq(step, GROUP)
    s0 = warpgroup_mma_wait(4, deps=[s0])
    first_query = block * (2 * KEYS)
    p0 = _weights(s0, first_query, first_key, n_keys, scale_log2, MASKED, CAUSAL, MASK_KEYS)
    weights0 = gl.convert_layout(p0.to(DTYPE), A_LAYOUT)
    dp0 = warpgroup_mma_wait(2, deps=[dp0])
    ds0 = (p0 * dp0).to(DTYPE)
    dp1 = _scores(v, do1, 0, 0, delta1, S_LAYOUT, 0)
    dv = warpgroup_mma(weights0, do0, dv, is_async=True)
    operand0 = gl.convert_layout(ds0, A_LAYOUT)
    dk = warpgroup_mma(operand0, q0, dk, is_async=True)
    ds_tiles.index((buffer * GROUPS + GROUP) * 2).store(ds0)
    s1 = warpgroup_mma_wait(4, deps=[s1])
    p1 = _weights(s1, first_query + KEYS, first_key, n_keys, scale_log2, MASKED, CAUSAL, MASK_KEYS)
    weights1 = gl.convert_layout(p1.to(DTYPE), A_LAYOUT)
    if GROUP == 1:  # dS of the first half of queries: the other warpgroup computes their dq
        fence_async_shared()
        arrive(DS_FULL, ALL_THREADS)
    dp1 = warpgroup_mma_wait(2, deps=[dp1])
    ds1 = (p1 * dp1).to(DTYPE)
    dv = warpgroup_mma(weights1, do1, dv, is_async=True)
    operand1 = gl.convert_layout(ds1, A_LAYOUT)
    dk = warpgroup_mma(operand1, q1, dk, is_async=True)
    ds_tiles.index((buffer * GROUPS + GROUP) * 2 + 1).store(ds1)
    fence_async_shared()
    arrive_and_wait(DS_FULL + GROUP, ALL_THREADS)
    if GROUP == 0:  # only now: the other must not arrive a second time before all have met
        arrive(DS_FULL + 1, ALL_THREADS)
    dq_coming = gl.zeros([KEYS, WIDTH], gl.float32, G_LAYOUT)
    for group in gl.static_range(GROUPS):
        ds_of = ds_tiles.index((buffer * GROUPS + group) * 2 + GROUP).permute((1, 0))
        k_of = k_tiles.index(group + own - GROUP)
        dq_coming = warpgroup_mma(ds_of, k_of, dq_coming, use_acc=group > 0, is_async=True)
    dv, dk, weights0, weights1, operand0, operand1 = warpgroup_mma_wait(
        GROUPS, deps=[dv, dk, weights0, weights1, operand0, operand1]
    )
    arrive(DO_FREE + slot, FREE_THREADS)
    arrive(Q_FREE + slot, FREE_THREADS)
    _leave_dq(warpgroup_mma_wait(0, deps=[dq_coming]), dq_tiles[GROUP], GROUP)
    return dk, dv
