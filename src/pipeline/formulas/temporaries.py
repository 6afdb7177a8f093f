"""Bytes of the temporaries of a block, the head and the loss, in closed form.

Symbols as in `pipeline.formulas.activations`.
"""

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.attention import SOFTMAX_BACKWARD_TEMPORARIES
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES


def passing_bytes(workload: Workload) -> dict[str, int]:
    """Count the bytes of temporaries of a block that saves nothing.

    Attention: x and its norm (8Td), q, k, v (3eTd), scores and softmax, plus the larger of two: the scores' copy in
    bf16, from which the softmax is taken; or, at the last product, v's copy (made for more than one sequence) and the
    output. SwiGLU: the block's input, x and its norm (12Td), silu(gate), up and their product (3eTf).
    """
    stream, width = residual_stream_bytes(workload), workload.heads_bytes
    attention = 2 * stream + 3 * width
    if workload.is_fused:
        attention += 2 * width
    else:
        matrices = 2 * workload.softmax_element_bytes * workload.score_elements
        attention += matrices + max(workload.softmax_copy_bytes, 2 * width)
    return {"attention": attention, "SwiGLU": 3 * stream + 3 * workload.hidden_bytes}


def beside_saved_scores_bytes(workload: Workload) -> int:
    """Count the bytes of eager attention's temporaries at the softmax: the unscaled q, v (2eTd) and the scores."""
    if workload.is_fused:
        return 0
    return 2 * workload.heads_bytes + workload.softmax_element_bytes * workload.score_elements


def logit_bytes(workload: Workload) -> int:
    """Count the bytes of the logits that the log-softmax reads: 4TV, under autocast 2TV and their copy in fp32."""
    element = BF16_BYTES + FP32_BYTES if workload.is_autocast else FP32_BYTES
    return element * workload.tokens * workload.vocab_size


def attention_gradient_bytes(workload: Workload) -> int:
    """Count the bytes that attention's backward pass allocates.

    Eager: the gradient of v (eTd) and those of the softmax's output and input, on CUDA with the softmax's temporary;
    the softmax's bf16 copy, if any, is freed. Fused: the gradients of the output, q, k and v (4eTd).
    """
    if workload.is_fused:
        return 4 * workload.heads_bytes
    matrices = 2 + SOFTMAX_BACKWARD_TEMPORARIES[workload.device_type]
    gradients = matrices * workload.softmax_element_bytes * workload.score_elements
    return workload.heads_bytes + gradients - workload.softmax_copy_bytes
