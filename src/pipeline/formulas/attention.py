"""FLOPs and bytes of attention alone in closed form, as a benchmark runs it: q, k and v exist beforehand.

`activations` and `peak_memory` count attention inside the model, where the scaled queries replace q and the precision
of the softmax follows autocast.

Symbols: B batch size, H query heads, K key/value heads (fewer than H in grouped-query attention, GQA), S sequence
length of queries and keys, D head_dim, e bytes per element. A multiply-add is 2 FLOPs, and only matrix products count.
"""

from dataclasses import dataclass, replace

from pipeline.formulas.units import FP32_BYTES

# Score-sized temporaries of the softmax's backward pass. CUDA stores the product of gradient and output before summing
# the rows; a CPU does both in one loop. Source: PyTorch's aten/src/ATen/native/cuda/SoftMax.cu,
# softmax_backward_cuda_out: `Tensor tmp = grad * output`.
SOFTMAX_BACKWARD_TEMPORARIES = {"cpu": 0, "cuda": 1}


@dataclass(frozen=True)
class Shape:
    """One attention problem; num_heads counts query heads and is a multiple of query_heads_per_kv_head."""

    batch_size: int
    num_heads: int
    seq_len: int
    head_dim: int
    is_causal: bool
    query_heads_per_kv_head: int = 1

    @property
    def num_kv_heads(self) -> int:
        """Count the key/value heads."""
        return self.num_heads // self.query_heads_per_kv_head

    @property
    def has_shared_keys(self) -> bool:
        """Tell whether several query heads share a key/value head."""
        return self.query_heads_per_kv_head > 1

    @property
    def vectors(self) -> int:
        """Count the elements of q, as many as in the output: B·H·S·D."""
        return self.batch_size * self.num_heads * self.seq_len * self.head_dim

    @property
    def scores(self) -> int:
        """Count the elements of the score matrices: B·H·S²."""
        return self.batch_size * self.num_heads * self.seq_len**2


def forward_flops(shape: Shape) -> int:
    """Count the FLOPs of the forward pass: 4·B·H·S²·D, or half of that if causal."""
    return (2 if shape.is_causal else 4) * shape.scores * shape.head_dim


def pass_flops(shape: Shape, pass_name: str) -> float:
    """Count the FLOPs of `forward`, `backward` or `forward_backward`.

    The backward pass has five matrix products, the forward pass two: the scores again, dV, dP, dQ and dK. Eager
    attention keeps its weights and does only four, but all implementations get the same count to make rates comparable.
    Source: Dao 2023 (FlashAttention-2), section 4.1.
    """
    return {"forward": 1, "backward": 2.5, "forward_backward": 3.5}[pass_name] * forward_flops(shape)


def saved_bytes(shape: Shape, element_bytes: int) -> int:
    """Count the bytes that eager attention saves in addition to its inputs: B·H·(S² + S·D)·e.

    These are the softmax's output and the scaled queries. With GQA k and v are repeated for every query head, and both
    copies are saved too: B·H·2·S·D·e more.
    """
    copies = 2 if shape.has_shared_keys else 0
    return (shape.scores + (1 + copies) * shape.vectors) * element_bytes


def flash_saved_bytes(shape: Shape) -> int:
    """Count the bytes that FlashAttention saves in addition to inputs and output: the LSE in fp32, 4·B·H·S."""
    return FP32_BYTES * shape.batch_size * shape.num_heads * shape.seq_len


def before_backward_bytes(shape: Shape, element_bytes: int) -> int:
    """Count the bytes in use between eager forward and backward: q, k, v, output, its gradient, and what is saved."""
    elements = 3 * shape.vectors + 2 * shape.vectors // shape.query_heads_per_kv_head
    return elements * element_bytes + saved_bytes(shape, element_bytes)


def peak_bytes(shape: Shape, element_bytes: int, device_type: str) -> int:
    """Count the peak bytes of eager forward and backward: for long S about 3·B·H·S²·e, on "cuda" 4·B·H·S²·e.

    The softmax's backward pass holds the weights, their gradient, the gradient of the scores and dV, and on a GPU
    SOFTMAX_BACKWARD_TEMPORARIES more. If S is far below D, the peak comes later: the gradients of all three inputs.
    With GQA the copy of v is freed before both.
    """
    matrices = 2 + SOFTMAX_BACKWARD_TEMPORARIES[device_type]
    in_backward = max(matrices * shape.scores + shape.vectors, 3 * shape.vectors)
    freed = shape.vectors if shape.has_shared_keys else 0
    return before_backward_bytes(shape, element_bytes) + (in_backward - freed) * element_bytes


def longest_that_fits(shape: Shape, element_bytes: int, device_type: str, memory_bytes: int) -> int:
    """Return the longest sequence whose eager forward and backward fit into `memory_bytes`; 0 if none does.

    The sequence length of `shape` is ignored. peak_bytes grows with S, so bisection finds the limit.
    """

    def fits(seq_len: int) -> bool:
        return peak_bytes(replace(shape, seq_len=seq_len), element_bytes, device_type) <= memory_bytes

    low, high = 0, 1
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
