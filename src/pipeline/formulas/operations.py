"""Minimum bytes and FLOPs of the operations between the matrix products of a transformer.

Symbols: N tokens, d model width, f feed-forward width, V vocabulary size, P parameters of a block, e bytes per element.
Bytes count what must be read and written once if intermediates stay on the chip; what forward keeps for backward is
read again there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.formulas.parameters import attention_matrices, feed_forward_matrices
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import FP32_BYTES, INT64_BYTES

# Whole: forward and backward, or the update of an optimizer.
FORWARD, BACKWARD, WHOLE = "forward", "backward", "whole"
# Which entries of a (forward, backward) pair a phase adds up.
_OF_PHASE = {FORWARD: (0,), BACKWARD: (1,), WHOLE: (0, 1)}
# FLOPs per element, forward and backward. Each addition, multiplication, division, exponential and root counts as one;
# work done once per row does not count.
# rms_norm: sum, square, their sum, 1/rms, weight; backward the norm again, the weight's gradient (2), that of the norm
# with its mean (6), the addend's (1). rotary: two products and a sum. swiglu: sigmoid (3) and two products; backward
# the sigmoid again, silu, up's gradient, gate's (6). linear_cross_entropy: only its products. adamw: decay, both
# moments (7), root, correction, epsilon, the quotient, step size, sum.
FLOPS = {"rms_norm": (5, 10), "rotary": (3, 3), "swiglu": (5, 11), "linear_cross_entropy": (2, 4), "adamw": (14, 0)}


@dataclass(frozen=True)
class Widths:
    """The dimensions of an operation: a batch of sequences in a model of some size."""

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

    rms_norm, with the sum before it: 4Nd for x, residual, their sum and the norm; backward 4Nd for both gradients, the
    sum and the gradient that both addends share; plus the weight. rotary: queries and keys, read and written, and fp32
    tables; backward the same. swiglu: 3Nf; backward 5Nf. linear_cross_entropy: x, weight and targets; backward these
    once more and both gradients. adamw: 7P, as weights, gradients and both moments are read, and all but the gradients
    written. All times e.
    """
    size, tokens = widths.size, widths.tokens
    stream, heads = 4 * tokens * size.d_model, 2 * tokens * (size.attention_width + size.kv_width)
    hidden, head = tokens * size.d_ff, (tokens + widths.vocab_size) * size.d_model
    elements = {
        "rms_norm": (stream + size.d_model, stream + 2 * size.d_model),
        "rotary": (heads, heads),
        "swiglu": (3 * hidden, 5 * hidden),
        "linear_cross_entropy": (head, 2 * head),
        "adamw": (7 * sum(widths.block_parameters), 0),
    }[operation]
    tables, targets = widths.seq_len * size.head_dim * FP32_BYTES, tokens * INT64_BYTES
    of_other_types = {"rotary": tables, "linear_cross_entropy": targets}.get(operation, 0)
    return sum(element_bytes * elements[part] + of_other_types for part in _OF_PHASE[phase])


def flops(operation: str, phase: str, widths: Widths) -> int:
    """Count the FLOPs of a phase of an operation, by FLOPS."""
    size, tokens = widths.size, widths.tokens
    numbers = {
        "rms_norm": tokens * size.d_model,
        "rotary": tokens * (size.attention_width + size.kv_width),
        "swiglu": tokens * size.d_ff,
        "linear_cross_entropy": tokens * size.d_model * widths.vocab_size,
        "adamw": sum(widths.block_parameters),
    }[operation]
    return numbers * sum(FLOPS[operation][part] for part in _OF_PHASE[phase])


def product_flops(operation: str, phase: str, widths: Widths) -> int:
    """Count the FLOPs of an operation's matrix products: 2NdV of linear_cross_entropy, backward twice that, else 0."""
    return flops(operation, phase, widths) if operation == "linear_cross_entropy" else 0
