"""What a training step gains where the linear layers of its blocks multiply faster, as in fp8, by Amdahl's law.

Symbols: t the time of a step, w the FLOPs of those products, r and q the rates of a product before and after. They take
w / r of t at least; at rate q they take w / q, and all else stays: the gain is t / (t − w/r + w/q). Casts and scales
are left out, so a measured gain lies below.
"""

from pipeline.formulas.parameters import block_matrix_elements
from pipeline.formulas.sizes import ModelSize


def linear_flops(size: ModelSize, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the linear layers of all blocks in a step: 6BSL(4d² + 3df), forward and both gradients.

    2 FLOPs per token and matrix element in each of the three products; embedding and head are not among them.
    """
    return 6 * batch_size * seq_len * size.num_layers * block_matrix_elements(size)


def predicted_gain(flops: int, step_ms: float, before_tflops_per_s: float, after_tflops_per_s: float) -> float:
    """Return how many times as fast a step is whose products run at the second rate in place of the first.

    At the first rate products take at most the whole step.
    """
    share = min(1.0, flops / before_tflops_per_s / 1e9 / step_ms)
    return 1 / (1 - share + share * before_tflops_per_s / after_tflops_per_s)
