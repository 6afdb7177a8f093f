"""Helpers shared by the Gluon kernels: order of work, masks, tensor descriptors, barriers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

# A kernel is compiled once for all values of these arguments.
SIZES = (
    *(f"stride_{tensor}{of}" for tensor in ("q", "k", "v", "do") for of in ("b", "h", "")),
    "heads",
    "n_matrices",
    "n_queries",
    "n_keys",
    "n_tiles",
    "heads_together",
)

LN_2 = gl.constexpr(0.6931471805599453)
ROWS = gl.constexpr(64)  # queries per warpgroup: the rows of one wgmma
LOADING_REGISTERS = gl.constexpr(24)  # per thread: the minimum

# Named barriers: the hardware has 16. Triton uses the first ones, one for all threads and one per warpgroup; kernels
# with named barriers of their own have two warpgroups. Single warps need none. Only threads that `arrive_and_wait`
# wait at a named barrier, whereas every arrival at an mbarrier first synchronizes all threads of its warpgroup.
FIRST_NAMED_BARRIER = gl.constexpr(3)


@gluon.constexpr_function
def _barrier_code(operation, threads):
    return f"bar.{operation} $1, {threads}; mov.b32 $0, $1;"


@gluon.jit
def arrive_and_wait(barrier, THREADS: gl.constexpr):
    """Wait at a named barrier until THREADS threads have arrived, including these."""
    code: gl.constexpr = _barrier_code("sync", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive(barrier, THREADS: gl.constexpr):
    """Arrive at a named barrier without waiting."""
    code: gl.constexpr = _barrier_code("arrive", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque(number):
    """Return a number, hiding its value from the compiler.

    The compiler then computes what depends on it where it is needed, instead of keeping it in registers over a loop.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], gl.int32, is_pure=False, pack=1)


@gluon.jit
def work_item(i):
    """Return the number of this program's i-th item: it takes one of every wave of items.

    Items are numbered by descending work, and every other wave is assigned in reverse, so that the program with the
    most work in one wave gets the least in the next.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    return i * programs + gl.where(i % 2 == 0, program, programs - 1 - program)


@gluon.jit
def matrix_and_tile(item, n_tiles, n_matrices, heads_together):
    """Return an item's matrix (of one batch element and head) and its tile; tile 0 has the most work.

    Matrices are processed heads_together at a time (see `schedule`): tile 0 of each of them, then tile 1, and so on.
    """
    first = item // (heads_together * n_tiles) * heads_together
    rank = item % (heads_together * n_tiles)
    together = gl.minimum(heads_together, n_matrices - first)
    return first + rank % together, rank // together


@gluon.jit
def item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS: gl.constexpr):
    """Return whether this program has an i-th item, and its matrix and tile.

    IN_PAIRS: the number of tiles is even, and the program takes tiles t and n_tiles - 1 - t of a matrix in a row, which
    balances work. So matrices are processed one after the other, and all programs together read little at a time.
    """
    if IN_PAIRS:
        pairs = n_tiles // 2
        pair = i // 2 * gl.num_programs(0) + gl.program_id(0)
        matrix, tile = pair // pairs, pair % pairs
        tile = gl.where(i % 2 == 0, tile, n_tiles - 1 - tile)
        exists = matrix < n_matrices
    else:
        item = work_item(i)
        matrix, tile = matrix_and_tile(item, n_tiles, n_matrices, heads_together)
        exists = item < n_tiles * n_matrices
    return exists, matrix, tile


@gluon.jit
def blocks_of(query_end, n_keys, CAUSAL: gl.constexpr, BLOCK_KEYS: gl.constexpr):
    """Return how many blocks of keys the queries before `query_end` attend to."""
    blocks = gl.cdiv(n_keys, BLOCK_KEYS)
    if CAUSAL:
        blocks = gl.minimum(blocks, gl.cdiv(query_end, BLOCK_KEYS))
    return blocks


@gluon.jit
def tile_after(rank, n_tiles, CAUSAL: gl.constexpr):
    """Return the tile of queries of a rank by descending work: with a causal mask, the last tile has the most."""
    return n_tiles - 1 - rank if CAUSAL else rank


@gluon.jit
def masked(x, other, block, first_query, n_keys, CAUSAL: gl.constexpr):
    """Replace what belongs to a key past the end or, if CAUSAL, after its query, in numbers of (queries, keys)."""
    LAYOUT: gl.constexpr = x.type.layout
    keys = block * x.shape[1] + gl.arange(0, x.shape[1], gl.SliceLayout(0, LAYOUT))[None, :]
    visible = keys < n_keys
    if CAUSAL:
        visible &= keys <= (first_query + gl.arange(0, x.shape[0], gl.SliceLayout(1, LAYOUT)))[:, None]
    return gl.where(visible, x, other)


@gluon.jit
def matrices_at(
    pointer, n_matrices, heads, rows, strides, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, WIDTH: gl.constexpr
):
    """Return a tensor descriptor of (batch, heads, rows, head_dim) for blocks of rows of one matrix.

    strides: of batch, head and row. Rows and columns of a block beyond the last are read as 0 and not written.
    """
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK, WIDTH], pointer.dtype.element_ty)
    return tma.make_tensor_descriptor(
        pointer, [n_matrices // heads, heads, rows, HEAD_DIM], [strides[0], strides[1], strides[2], 1],
        [1, 1, BLOCK, WIDTH], LAYOUT,
    )  # fmt: skip


@gluon.jit
def dense_matrices_at(pointer, n_matrices, rows, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, WIDTH: gl.constexpr):
    """Return a descriptor as `matrices_at` does, of a contiguous (matrices, rows, head_dim) as one batch element."""
    stride = rows.to(gl.int64) * HEAD_DIM
    return matrices_at(pointer, n_matrices, n_matrices, rows, (stride, stride, HEAD_DIM), HEAD_DIM, BLOCK, WIDTH)


@gluon.jit
def as_block(tile):
    """View a tile in shared memory as the 4-D block that a descriptor copies."""
    return tile.reshape([1, 1, tile.shape[0], tile.shape[1]])


@gluon.jit
def load(descriptor, matrix, heads, row, full, tile, column=0):
    """Start copying a block of rows into shared memory; it completes on `full`, which must expect its bytes."""
    tma.async_copy_global_to_shared(descriptor, [matrix // heads, matrix % heads, row, column], full, as_block(tile))


@gluon.jit
def store_block(matrices, matrix, row, tile, numbers, column=0):
    """Store a block of rows in memory, through a tile of shared memory that is free for it; wait until it is read."""
    tile.store(numbers)
    fence_async_shared()
    tma.async_copy_shared_to_global(matrices, [0, matrix, row, column], as_block(tile))
    tma.store_wait(0)


@gluon.jit
def tiles_of(COUNT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, DTYPE: gl.constexpr):
    """Allocate tiles in shared memory, laid out as wgmma and the copy engine want them."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE)
    return gl.allocate_shared_memory(DTYPE, [COUNT, ROWS, WIDTH], LAYOUT)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate COUNT mbarriers, each completed by ARRIVALS arrivals."""
    found = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(found.index(i), count=ARRIVALS)
    return found


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """Return the next slot of a ring of STAGES buffers, and the phase that its barriers are then in."""
    is_last = slot == STAGES - 1
    return gl.where(is_last, 0, slot + 1), gl.where(is_last, phase ^ 1, phase)
