"""Predict, by Amdahl's law, how much faster a training step gets if its linear layers multiply faster, as in fp8.

Symbols: t the time of a step, w the FLOPs of the linear layers of its blocks, r and q the FLOP rates before and after.
These products take at least w / r of t; at rate q they take w / q, and the rest stays: the gain is t / (t − w/r + w/q).
Casts and scales are left out, so a measured gain is lower.
"""

from pipeline.formulas.parameters import block_matrix_elements
from pipeline.formulas.sizes import ModelSize


def linear_flops(size: ModelSize, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the linear layers of all blocks in a step: 6BSL(4d² + 3df), forward and both gradients.

    2 FLOPs per token and matrix element in each of the three products; embedding and head are left out.
    """
    return 6 * batch_size * seq_len * size.num_layers * block_matrix_elements(size)


def predicted_gain(flops: int, step_ms: float, before_tflops_per_s: float, after_tflops_per_s: float) -> float:
    """Return the speedup of a step whose products run at the second rate instead of the first.

    At the first rate the products are taken to fill at most the whole step.
    """
    share = min(1.0, flops / before_tflops_per_s / 1e9 / step_ms)
    return 1 / (1 - share + share * before_tflops_per_s / after_tflops_per_s)
