"""Cross-entropy of rows of logits in Triton; the gradient overwrites the logits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 8192
WARPS = 16
SCALED_BLOCK, SCALING_PROGRAMS = 4096, 1024


@triton.jit
def cross_entropy_kernel(
    logits_ptr, targets_ptr, scale_ptr, losses_ptr, vocab_size, ignore_index, BLOCK: tl.constexpr,
    GRADIENT: tl.constexpr,
):  # fmt: skip
    """Compute the loss of one row; with GRADIENT, overwrite the logits with the gradient of `scale` times the loss."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * vocab_size
    target = tl.load(targets_ptr + row)
    counts = target != ignore_index
    columns = tl.arange(0, BLOCK)
    # Keep a maximum and a sum for each column of a block and reduce them once, after the loop. Two blocks at a time
    # share the exponential that rescales the sum to the new maximum.
    largest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab_size, 2 * BLOCK):
        places = start + columns
        first = tl.load(logits_ptr + places, mask=places < vocab_size, other=float("-inf")).to(tl.float32)
        places += BLOCK
        second = tl.load(logits_ptr + places, mask=places < vocab_size, other=float("-inf")).to(tl.float32)
        larger = tl.maximum(largest, tl.maximum(first, second))
        # A column that has seen no logit yet has maximum -inf; exp(-inf + inf) would be NaN.
        safe = tl.where(larger == float("-inf"), 0.0, larger)
        total = total * tl.exp(largest - safe) + tl.exp(first - safe) + tl.exp(second - safe)
        largest = larger
    maximum = tl.max(largest, 0)
    log_sum = tl.log(tl.sum(total * tl.exp(largest - maximum), 0))  # relative to the maximum
    # A target outside the vocabulary makes the loss NaN.
    inside = (target >= 0) & (target < vocab_size)
    at_target = tl.load(logits_ptr + target, mask=inside, other=float("nan")).to(tl.float32)
    tl.store(losses_ptr + row, tl.where(counts, log_sum - (at_target - maximum), 0.0))
    if GRADIENT:
        tl.debug_barrier()  # the target's logit is read before another thread overwrites it
        scale = tl.where(counts, tl.load(scale_ptr), 0.0)
        for start in range(0, vocab_size, BLOCK):
            exists = start + columns < vocab_size
            logits = tl.load(logits_ptr + start + columns, mask=exists, other=float("-inf")).to(tl.float32)
            gradient = tl.exp(logits - maximum - log_sum) - tl.where(start + columns == target, 1.0, 0.0)
            tl.store(logits_ptr + start + columns, gradient * scale, mask=exists)


@triton.jit
def scale_kernel(tensor_ptr, factor_ptr, count, BLOCK: tl.constexpr):
    """Multiply a tensor in place by a factor; a factor of 1 costs nothing."""
    factor = tl.load(factor_ptr)
    if factor != 1:
        for block in range(tl.program_id(0).to(tl.int64), tl.cdiv(count, BLOCK), tl.num_programs(0)):
            places = block * BLOCK + tl.arange(0, BLOCK)
            values = tl.load(tensor_ptr + places, mask=places < count).to(tl.float32)
            tl.store(tensor_ptr + places, values * factor, mask=places < count)


def cross_entropy(
    logits: Tensor, targets: Tensor, ignore_index: int, losses: Tensor, scale: Tensor | None = None
) -> None:
    """Fill `losses`; with a `scale`, overwrite the logits with the gradient of `scale` times the losses' sum.

    Shapes: logits are (rows, vocab_size), contiguous; targets and losses (rows,), losses in fp32; scale is one number
    in fp32. A row whose target is `ignore_index` has the loss 0 and no gradient.
    """
    rows, vocab_size = logits.shape
    block = min(MAX_BLOCK, triton.next_power_of_2(vocab_size))
    constants = {"BLOCK": block, "GRADIENT": scale is not None}
    cross_entropy_kernel[(rows,)](
        logits, targets, scale, losses, vocab_size, ignore_index, num_warps=WARPS, **constants
    )


def scale(tensor: Tensor, factor: Tensor) -> None:
    """Multiply a contiguous tensor, in place, by a factor in fp32 on its device."""
    programs = min(SCALING_PROGRAMS, triton.cdiv(tensor.numel(), SCALED_BLOCK))
    scale_kernel[(programs,)](tensor, factor, tensor.numel(), BLOCK=SCALED_BLOCK)
    torch.autograd.graph.increment_version(tensor)  # as autograd does for torch operations
