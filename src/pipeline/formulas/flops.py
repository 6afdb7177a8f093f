"""FLOPs of the transformer in closed form.

Symbols: V vocabulary size, d d_model, f d_ff, L layers, B batch size, S sequence length. A multiply-add is 2 FLOPs.
Only matrix products count; norms, softmax, activation functions and rotations are bound by memory bandwidth.
"""

from pipeline.formulas.parameters import block_matrix_elements, head_matrix_elements
from pipeline.formulas.sizes import ModelSize


def forward_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the forward pass with eager attention: BS · (L(8d² + 6df + 4Sd) + 2dV).

    2 FLOPs per token and matrix element, plus attention over the full S × S scores: eager attention computes future
    positions too and masks them. A causal kernel that skips them does half of the term 4Sd.
    """
    products = size.num_layers * block_matrix_elements(size) + head_matrix_elements(size, vocab_size)
    attention_flops = size.num_layers * attention_forward_flops(size, batch_size, seq_len)
    return 2 * batch_size * seq_len * products + attention_flops


def attention_forward_flops(size: ModelSize, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of one layer's attention without its projections: 4BS²d."""
    return 4 * batch_size * seq_len**2 * size.attention_width


def backward_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of the backward pass: twice the forward's, because each product needs a gradient per factor.

    Attention's backward pass counts 2 times its forward here, not 2.5 times as in `attention.pass_flops`: eager
    attention keeps its weights and recomputes no scores.
    """
    return 2 * forward_flops(size, vocab_size, batch_size, seq_len)


def train_step_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of forward and backward, 3 times the forward's; the optimizer has no matrix product."""
    return 3 * forward_flops(size, vocab_size, batch_size, seq_len)


def causal_train_step_flops(size: ModelSize, vocab_size: int, batch_size: int, seq_len: int) -> int:
    """Count the FLOPs of forward and backward if attention skips the future: 3BS · (L(8d² + 6df + 2Sd) + 2dV).

    As in model FLOPs utilization (MFU), recomputation does not count.
    """
    future = size.num_layers * attention_forward_flops(size, batch_size, seq_len) // 2
    return train_step_flops(size, vocab_size, batch_size, seq_len) - 3 * future
