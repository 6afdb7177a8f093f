"""What the Gluon kernels have in common: the order of their work, tensor descriptors, barriers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

# Kernels are compiled once for all numbers of these.
SIZES = (
    *(f"stride_{tensor}{of}" for tensor in ("q", "k", "v", "do") for of in ("b", "h", "")),
    "heads",
    "n_matrices",
    "n_queries",
    "n_keys",
    "n_tiles",
    "heads_together",
)


# Named barriers: the hardware has 16, and Triton uses the first of them, one for all threads and one of each warpgroup;
# kernels with barriers of their own have two warpgroups. Warps alone need none. No thread but those that `meet` waits
# at one, where every arrival at an mbarrier has its warpgroup wait for all of its threads.
FIRST_NAMED_BARRIER = gl.constexpr(3)


@gluon.constexpr_function
def _barrier_code(operation, threads):
    return f"bar.{operation} $1, {threads}; mov.b32 $0, $1;"


@gluon.jit
def meet(barrier, THREADS: gl.constexpr):
    """Wait at a named barrier until as many threads have come there, these included."""
    code: gl.constexpr = _barrier_code("sync", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, is_pure=False, pack=1)


@gluon.jit
def arrive(barrier, THREADS: gl.constexpr):
    """Count as come to a named barrier, and go on."""
    code: gl.constexpr = _barrier_code("arrive", THREADS)
    gl.inline_asm_elementwise(code, "=r,r", [barrier], gl.int32, is_pure=False, pack=1)


@gluon.jit
def opaque(number):
    """Return a number without the compiler knowing which.

    It then computes what follows from it where it is needed, and keeps none of it in registers over a loop.
    """
    return gl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [number], gl.int32, is_pure=False, pack=1)


@gluon.jit
def work_item(i):
    """Return the number of this program's i-th item: one of every wave of programs.

    Items are numbered from those with most work on, and every other wave goes backwards: who had most has least next.
    """
    programs = gl.num_programs(0)
    program = gl.program_id(0)
    return i * programs + gl.where(i % 2 == 0, program, programs - 1 - program)


@gluon.jit
def matrix_and_tile(item, n_tiles, n_matrices, heads_together):
    """Return an item's matrix (of one batch element and head) and its tile, the first of which has most work.

    Some heads at a time are gone through, as many as the L2 cache holds, and of these the first tile of each first.
    """
    first = item // (heads_together * n_tiles) * heads_together
    rank = item % (heads_together * n_tiles)
    together = gl.minimum(heads_together, n_matrices - first)
    return first + rank % together, rank // together


@gluon.jit
def item_of(i, n_tiles, n_matrices, heads_together, IN_PAIRS: gl.constexpr):
    """Return whether this program has an i-th item, and its matrix and tile.

    IN_PAIRS: of an even number of tiles it takes the one with most work left of a matrix, then the one with least, so
    that matrix comes after matrix, and what all programs read at a time is little.
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
def matrices_at(
    pointer, n_matrices, heads, rows, strides, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, WIDTH: gl.constexpr
):
    """Describe (batch, heads, rows, head_dim) to the copy engine, in blocks of rows of one matrix.

    strides: of batch, head and row. What a block has beyond the last row or column is read as 0 and not written.
    """
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK, WIDTH], pointer.dtype.element_ty)
    return tma.make_tensor_descriptor(
        pointer, [n_matrices // heads, heads, rows, HEAD_DIM], [strides[0], strides[1], strides[2], 1],
        [1, 1, BLOCK, WIDTH], LAYOUT,
    )  # fmt: skip


@gluon.jit
def dense_matrices_at(pointer, n_matrices, rows, HEAD_DIM: gl.constexpr, BLOCK: gl.constexpr, WIDTH: gl.constexpr):
    """Describe a contiguous (matrices, rows, head_dim) as `matrices_at` does, with one batch element."""
    stride = rows.to(gl.int64) * HEAD_DIM
    return matrices_at(pointer, n_matrices, n_matrices, rows, (stride, stride, HEAD_DIM), HEAD_DIM, BLOCK, WIDTH)


@gluon.jit
def as_block(tile):
    """View a tile in shared memory as the block of four dimensions that a descriptor copies."""
    return tile.reshape([1, 1, tile.shape[0], tile.shape[1]])


@gluon.jit
def load(descriptor, matrix, heads, row, full, tile, column=0):
    """Start to copy a block of rows into shared memory, which completes at a barrier that expects its bytes."""
    tma.async_copy_global_to_shared(descriptor, [matrix // heads, matrix % heads, row, column], full, as_block(tile))


@gluon.jit
def tiles_of(COUNT: gl.constexpr, ROWS: gl.constexpr, WIDTH: gl.constexpr, DTYPE: gl.constexpr):
    """Allocate tiles in shared memory, laid out as wgmma and the copy engine want them."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], DTYPE)
    return gl.allocate_shared_memory(DTYPE, [COUNT, ROWS, WIDTH], LAYOUT)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Allocate barriers, each of which so many arrivals complete."""
    found = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(found.index(i), count=ARRIVALS)
    return found


@gluon.jit
def next_slot(slot, phase, STAGES: gl.constexpr):
    """Return the slot of a ring of buffers after this one, and the phase that its barriers are then in."""
    is_last = slot == STAGES - 1
    return gl.where(is_last, 0, slot + 1), gl.where(is_last, phase ^ 1, phase)
