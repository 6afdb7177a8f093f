"""AdamW in Triton: moments in any dtype are updated in fp32 and rounded once."""

import math

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
WARPS = 4


@triton.jit
def adamw_kernel(
    weight_ptr, gradient_ptr, mean_ptr, square_ptr, count_ptr, lr, log_beta1, log_beta2, beta1, beta2, eps, decay,
    elements, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a block of weights and their moments."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = places < elements
    count = tl.load(count_ptr)
    gradient = tl.load(gradient_ptr + places, mask=exists, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + places, mask=exists, other=0.0).to(tl.float32)
    square = tl.load(square_ptr + places, mask=exists, other=0.0).to(tl.float32)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * gradient * gradient
    tl.store(mean_ptr + places, mean, mask=exists)
    tl.store(square_ptr + places, square, mask=exists)
    weight = tl.load(weight_ptr + places, mask=exists, other=0.0).to(tl.float32)
    # Bias correction: divide each moment by the sum of its weights.
    mean = mean / (1 - tl.exp(count * log_beta1))
    square = square / (1 - tl.exp(count * log_beta2))
    weight = weight * (1 - lr * decay) - lr * mean / (tl.sqrt(square) + eps)
    tl.store(weight_ptr + places, weight, mask=exists)


def update(
    weight: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
) -> None:
    """Update a weight and its moments `mean` and `square`; count: the number of steps, fp32, on the device.

    Weight, gradient and moments must have the same shape and the same layout, without gaps.
    """
    gradient, elements = weight.grad, weight.numel()
    if gradient is None or gradient.stride() != weight.stride():
        raise ValueError("the gradient must be laid out as the weight is")
    adamw_kernel[(triton.cdiv(elements, BLOCK),)](
        weight, gradient, mean, square, count, lr, math.log(beta1), math.log(beta2), beta1, beta2, eps, decay, elements,
        BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
