"""Bytes and FLOPs of what stands between the matrix products of a transformer, at least.

Symbols: N tokens, d the model's width, f that of the feed-forward half, V the vocabulary, P parameters of a block, e
bytes of an element. Bytes are those that must be read and written once, if what lies between stays on the chip; what
forward keeps for backward is read again there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.formulas.parameters import attention_matrices, feed_forward_matrices
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import FP32_BYTES, INT64_BYTES

# Forward, then backward; whole: both, or the update of an optimizer.
FORWARD, BACKWARD, WHOLE = "forward", "backward", "whole"


@dataclass(frozen=True)
class Widths:
    """What an operation works on: a batch of sequences in a model of some size."""

    size: ModelSize
    batch_size: int
    seq_len: int
    vocab_size: int

    @property
    def tokens(self) -> int:
        """Tokens of the batch, N."""
        return self.batch_size * self.seq_len

    @property
    def block_parameters(self) -> Sequence[int]:
        """Elements of each of a block's parameters: its matrices and two norms."""
        size = self.size
        return [*attention_matrices(size), *feed_forward_matrices(size), size.d_model, size.d_model]


def moved_bytes(operation: str, phase: str, widths: Widths, element_bytes: int) -> int:
    """Count the bytes that a phase of an operation must read and write.

    rms_norm, with the sum before it: 4Nd of x, residual, their sum and the norm; backward 4Nd of both gradients, the
    sum and the gradient of the addends, which is one tensor; and the weight. rotary: queries and keys, read and
    written, and fp32 tables; backward the same. swiglu: 3Nf; backward 5Nf. linear_cross_entropy: x, weight and
    targets; backward these once more and both gradients. adamw: 7P of weights, gradients and both moments, of which
    all but the gradients are written too. All times e.
    """
    if phase == WHOLE and operation != "adamw":
        return sum(moved_bytes(operation, part, widths, element_bytes) for part in (FORWARD, BACKWARD))
    size, tokens, is_forward = widths.size, widths.tokens, phase == FORWARD
    match operation:
        case "rms_norm":
            return (4 * tokens + (1 if is_forward else 2)) * size.d_model * element_bytes
        case "rotary":
            tables = widths.seq_len * size.head_dim * FP32_BYTES
            return 2 * tokens * (size.attention_width + size.kv_width) * element_bytes + tables
        case "swiglu":
            return (3 if is_forward else 5) * tokens * size.d_ff * element_bytes
        case "linear_cross_entropy":
            once = (tokens + widths.vocab_size) * size.d_model * element_bytes
            return (1 if is_forward else 2) * once + tokens * INT64_BYTES
        case "adamw":
            return 7 * sum(widths.block_parameters) * element_bytes
    raise ValueError(f"unknown operation {operation}")


# FLOPs of a number that an operation is done for, forward and backward. Each addition, multiplication, division,
# exponential and root counts as one; what is done once a row does not count.
# rms_norm: sum, square, their sum, 1/rms, weight; backward the norm again, the weight's gradient (2), that of the norm
# with its mean (6), the addend's (1). rotary: two products and a sum. swiglu: sigmoid (3) and two products; backward
# the sigmoid again, silu, up's gradient, gate's (6). adamw: decay, both moments (7), root, correction, epsilon, the
# quotient, step size, sum.
FLOPS = {"rms_norm": (5, 10), "rotary": (3, 3), "swiglu": (5, 11), "adamw": (14, 0)}


def flops(operation: str, phase: str, widths: Widths) -> int:
    """Count the FLOPs of a phase of an operation, as FLOPS has them; of linear_cross_entropy its products alone."""
    if operation == "linear_cross_entropy":
        return product_flops(operation, phase, widths)
    size, tokens = widths.size, widths.tokens
    numbers = {
        "rms_norm": tokens * size.d_model,
        "rotary": tokens * (size.attention_width + size.kv_width),
        "swiglu": tokens * size.d_ff,
        "adamw": sum(widths.block_parameters),
    }[operation]
    forward, backward = FLOPS[operation]
    return numbers * {FORWARD: forward, BACKWARD: backward, WHOLE: forward + backward}[phase]


def product_flops(operation: str, phase: str, widths: Widths) -> int:
    """Count the FLOPs of an operation's matrix products: 2NdV of linear_cross_entropy, backward twice that, else 0."""
    if operation != "linear_cross_entropy":
        return 0
    products = {FORWARD: 1, BACKWARD: 2, WHOLE: 3}[phase]
    return products * 2 * widths.tokens * widths.size.d_model * widths.vocab_size
