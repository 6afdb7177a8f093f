"""Activation checkpointing, counted in blocks: which run again in the backward pass, and whose inputs are alive then.

Symbols: N blocks, k `every`, the most blocks whose saved tensors are alive at once. Bytes follow from these counts in
`activations` and `peak_memory`, FLOPs in `flops`.

segments: the inputs of ⌈N/k⌉ segments are kept, and each block runs once more (Chen et al. 2016). In units of an input,
the inputs and one segment's tensors take N/k + k·b, where b is what a block saves: least at k = √(N/b), which is below
1 if a block saves more than N inputs.

recursive: only the inputs of both halves are kept. When the backward pass reaches a half, it reruns the half's first
part to get the input of the second, and then does the same with each part (binary checkpointing: Griewank 1992). With
N = 2^p and k = 1 at most p inputs are alive besides the running block's own. A half of n blocks costs
T(n) = n/2 + 2·T(n/2) with T(1) = 1, hence n + n/2·log₂n, and both halves 2·T(N/2) = N/2·(log₂N + 1).
Keeping only the model's input takes the least memory: every block reruns all blocks before it, N²/2 in all.

selective: segments, but the outputs of attention are kept too, so that attention does not run again.
"""

from dataclasses import dataclass

KINDS = ("segments", "recursive", "selective")


@dataclass(frozen=True)
class Rerun:
    """Consecutive blocks that the backward pass runs again in one go, starting at number `start`.

    `inputs`: how many inputs of earlier blocks are alive, besides these blocks' own. `is_segment`: what the blocks save
    is kept, and their backward pass follows; else they run only to make the next block's input.
    """

    start: int
    blocks: int
    inputs: int
    is_segment: bool


def reruns(num_layers: int, every: int, kind: str) -> list[Rerun]:
    """Return all reruns of a backward pass in order; `every` is at least 1, `kind` one of KINDS."""
    if _is_halved(num_layers, every, kind):
        # Like those of a half, except that the forward pass has already made the input of the second part.
        return _reruns_of_half(0, num_layers, every, inputs=0)[1:]
    starts = range(0, num_layers, every)
    return [Rerun(start, min(every, num_layers - start), start // every, True) for start in starts][::-1]


def inputs_kept_by_forward(num_layers: int, every: int, kind: str) -> int:
    """Count the block inputs that the forward pass keeps: one per segment; recursive: one per half."""
    return 2 if _is_halved(num_layers, every, kind) else -(-num_layers // every)


def blocks_run_again(num_layers: int, every: int, kind: str) -> int:
    """Count the blocks that the backward pass runs again; 0 without checkpoints (`every` is 0)."""
    return sum(rerun.blocks for rerun in reruns(num_layers, every, kind)) if every else 0


def halves(num_layers: int) -> tuple[int, int]:
    """Split a number of blocks in two; the first half is the longer one."""
    return (num_layers + 1) // 2, num_layers // 2


def _is_halved(num_layers: int, every: int, kind: str) -> bool:
    return kind == "recursive" and num_layers > every


def _reruns_of_half(start: int, blocks: int, every: int, inputs: int) -> list[Rerun]:
    if blocks <= every:
        return [Rerun(start, blocks, inputs, is_segment=True)]
    first, second = halves(blocks)
    return [
        Rerun(start, first, inputs, is_segment=False),
        *_reruns_of_half(start + first, second, every, inputs + 1),
        *_reruns_of_half(start, first, every, inputs),
    ]
