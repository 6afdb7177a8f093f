"""FLOPs and bytes of attention in closed form. Imports no torch.

Symbols: B batch, H heads, S sequence length of queries and keys, D head_dim, e bytes of an element. A multiply-add is
2 FLOPs, and only matrix products count.
"""

from dataclasses import dataclass

LSE_BYTES = 4  # the log-sum-exp is kept in fp32

# The backward pass has five matrix products of the size of the forward's two: the scores again (or S² of memory
# instead), dV, dP, dQ and dK. Eager attention, which keeps its weights, does four of them; the same count is used for
# every implementation, so that their rates compare. Source: Dao 2023 (FlashAttention-2), section 4.1.
BACKWARD_OVER_FORWARD = 2.5

# Score-sized matrices that the softmax's backward pass makes beside its result. CUDA's makes the product of gradient
# and output first, and sums its rows then; a CPU's does both in one loop. Source: PyTorch's
# aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out: `Tensor tmp = grad * output`.
SOFTMAX_BACKWARD_TEMPORARIES = {"cpu": 0, "cuda": 1}


@dataclass(frozen=True)
class Shape:
    """Name one attention problem: batch, heads, sequence length, head_dim, causal or not."""

    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    is_causal: bool

    @property
    def vectors(self) -> int:
        """Count the elements of q, as of k, v and the output: B·H·S·D."""
        return self.batch_size * self.num_heads * self.seq_len * self.head_dim

    @property
    def scores(self) -> int:
        """Count the elements of the score matrices: B·H·S²."""
        return self.batch_size * self.num_heads * self.seq_len**2


def forward_flops(shape: Shape) -> float:
    """Count the FLOPs of the forward pass, 4·B·H·S²·D, and half of that if causal."""
    return 4 * shape.scores * shape.head_dim * (0.5 if shape.is_causal else 1)


def backward_flops(shape: Shape) -> float:
    """Count the FLOPs of the backward pass: 2.5 times the forward's."""
    return BACKWARD_OVER_FORWARD * forward_flops(shape)


def pass_flops(shape: Shape, pass_name: str) -> float:
    """Count the FLOPs of `forward`, `backward` or `forward_backward`."""
    flops = {"forward": forward_flops(shape), "backward": backward_flops(shape)}
    return sum(flops.values()) if pass_name == "forward_backward" else flops[pass_name]


def input_bytes(shape: Shape, element_bytes: int) -> int:
    """Count the bytes of q, k, v and the gradient of the output, which are there before any pass."""
    return 4 * shape.vectors * element_bytes


def saved_bytes(shape: Shape, element_bytes: int) -> int:
    """Count the bytes that eager attention keeps for the backward pass beside its inputs: B·H·(S² + S·D)·e.

    The softmax's output, and the scaled queries. Quadratic in S by the first.
    """
    return (shape.scores + shape.vectors) * element_bytes


def flash_saved_bytes(shape: Shape) -> int:
    """Count the bytes that FlashAttention keeps beside inputs and output: the log-sum-exp, B·H·S·4."""
    return LSE_BYTES * shape.vectors // shape.head_dim


def before_backward_bytes(shape: Shape, element_bytes: int) -> int:
    """Count the bytes in use between eager forward and backward: inputs, output, and what is saved."""
    return input_bytes(shape, element_bytes) + shape.vectors * element_bytes + saved_bytes(shape, element_bytes)


def peak_bytes(shape: Shape, element_bytes: int, device_type: str) -> int:
    """Count the most bytes in use during eager forward and backward: for long S about 3·B·H·S²·e, on "cuda" 4·B·H·S²·e.

    The softmax's backward pass holds the weights, their gradient and the gradient of the scores at once, with dV
    beside them, and on a GPU SOFTMAX_BACKWARD_TEMPORARIES more. Where S is far below D, the peak comes later: the
    gradients of all three inputs and of the scores.
    """
    matrices = 2 + SOFTMAX_BACKWARD_TEMPORARIES[device_type]
    in_backward = max(matrices * shape.scores + shape.vectors, 3 * shape.vectors)
    return before_backward_bytes(shape, element_bytes) + in_backward * element_bytes


def longest_that_fits(shape: Shape, element_bytes: int, device_type: str, memory_bytes: int) -> int:
    """Return the longest sequence whose eager forward and backward fit into so many bytes; 0 if none does.

    Of `shape` everything but the sequence length is used. peak_bytes grows with S, so the limit is found by bisection.
    """

    def fits(seq_len: int) -> bool:
        longer = Shape(shape.batch_size, shape.num_heads, seq_len, shape.head_dim, shape.is_causal)
        return peak_bytes(longer, element_bytes, device_type) <= memory_bytes

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
