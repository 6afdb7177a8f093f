"""Parameters, FLOPs and bytes of the transformer in closed form. Imports no torch: the workflow reads it.

Symbols: V vocabulary, d d_model, f d_ff, L layers, B batch, S sequence length. A multiply-add is 2 FLOPs, and
only matrix products count: what is left (norms, softmax, activations, rotations) is bound by memory traffic.
"""

from pipeline.formulas.sizes import ModelSize

FP32_BYTES = 4


def parameter_count(size: ModelSize, vocab_size: int) -> int:
    """Count the parameters.

    2Vd + L(4d² + 3df + 2d) + d: embedding and head; a layer's four attention matrices, three SwiGLU matrices
    and two norms; the last norm.
    """
    d, f = size.d_model, size.d_ff
    layer = 4 * d * d + 3 * d * f + 2 * d
    return 2 * vocab_size * d + size.num_layers * layer + d


def forward_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the forward pass as eager attention executes them.

    BS · (L(8d² + 6df + 4Sd) + 2dV). The term 4Sd, two products of B·S²·d, has the full S × S scores: the
    eager formula computes future positions too, and masks them. A causal kernel that skips them does half of
    this term.
    """
    d, f = size.d_model, size.d_ff
    layer_flops_per_token = 8 * d * d + 6 * d * f + 4 * seq_len * d
    head_flops_per_token = 2 * d * vocab_size
    return batch_size * seq_len * (size.num_layers * layer_flops_per_token + head_flops_per_token)


def backward_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the backward pass: twice the forward's, one product for each factor."""
    return 2 * forward_flops(size, vocab_size, batch_size, seq_len)


def train_step_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of forward and backward, 3 times the forward's; the optimizer has no matrix product."""
    return 3 * forward_flops(size, vocab_size, batch_size, seq_len)


def optimizer_bytes(size: ModelSize, vocab_size: int) -> int:
    """Count the bytes that one AdamW step in fp32 must move at least; its time is bound by them.

    7 · 4 bytes a parameter: it reads parameter, gradient and two moments, and writes parameter and two
    moments. An implementation that is not fused passes over them more than once and moves more.
    """
    return 7 * parameter_bytes(size, vocab_size)


def parameter_bytes(size: ModelSize, vocab_size: int) -> int:
    """Count the bytes of the parameters in fp32: 4 a parameter."""
    return FP32_BYTES * parameter_count(size, vocab_size)


def training_state_bytes(size: ModelSize, vocab_size: int) -> int:
    """Count the bytes of fp32 parameters, gradients and AdamW's two moments: 16 a parameter."""
    return 4 * parameter_bytes(size, vocab_size)
