"""The Triton attention with tiles so small that a few hundred rows fill many."""

from pipeline.attention.triton.autograd import planned_by
from pipeline.attention.triton.tiles import BackwardConfig, Choices, Chunking, TileConfig

SMALL = TileConfig(block_queries=16, block_keys=32, num_warps=4, num_stages=1)
# Chunks of 32 keys or queries, however few there are.
SHORT_CHUNKS = Chunking(programs_per_sm=1_000_000, min_length=32, shortest=0)
IN_CHUNKS = {f"{part}_chunks{of}": SHORT_CHUNKS for part in ("forward", "backward") for of in ("", "_fp32")}


def with_small_tiles(dq_has_its_own_kernel, **choices):
    """Return attention with small tiles that treats no sequence as short."""
    backward = BackwardConfig(SMALL, SMALL if dq_has_its_own_kernel else None, SMALL)
    return planned_by(Choices(forward_tiles=SMALL, backward_tiles=backward, longest_short_sequence=0, **choices)).apply
