"""What a block, the head and the loss hold for a moment only: bytes of temporaries in closed form.

Symbols as in `pipeline.formulas.activations`.
"""

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.attention import SOFTMAX_BACKWARD_TEMPORARIES
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES


def passing_bytes(workload: Workload) -> dict[str, int]:
    """Count the temporaries of a block that saves nothing.

    Attention: x and its norm (8Td), q, k, v (3eTd), plus the larger of two: the scores with their softmax; or, at the
    last product, scores, softmax, v's copy (made for more than one sequence) and the output. SwiGLU: the block's input,
    x and its norm (12Td), silu(gate), up and their product (3eTf).
    """
    stream, width = residual_stream_bytes(workload), workload.heads_bytes
    elements = 0 if workload.is_fused else workload.score_elements
    in_fp32 = FP32_BYTES if _is_softmax_in_fp32(workload) else 0
    last_product = 2 * width + (2 * workload.product_bytes + in_fp32) * elements
    return {
        "attention": 2 * stream + 3 * width + max(_softmax_bytes(workload), last_product),
        "SwiGLU": 3 * stream + 3 * workload.hidden_bytes,
    }


def beside_saved_scores_bytes(workload: Workload) -> int:
    """Count eager attention's temporaries at the softmax: the unscaled q, v (2eTd) and the scores."""
    if workload.is_fused:
        return 0
    return max(0, 2 * workload.heads_bytes + _softmax_bytes(workload) - workload.softmax_bytes)


def logit_bytes(workload: Workload) -> int:
    """Count the bytes of the logits that the log-softmax reads: 4TV, under autocast 2TV and their copy in fp32."""
    element = BF16_BYTES + FP32_BYTES if workload.is_autocast else FP32_BYTES
    return element * workload.tokens * workload.vocab_size


def attention_gradient_bytes(workload: Workload) -> int:
    """Count the bytes that attention's backward pass makes.

    Eager: the gradient of v (eTd) and those of the softmax's output and input: 2e per score, on CUDA 3e with the
    softmax's temporary; under autocast on CUDA all are in fp32 and the softmax's bf16 copy is freed. Fused: the
    gradients of the output, q, k and v (4eTd).
    """
    if workload.is_fused:
        return 4 * workload.heads_bytes
    in_fp32 = _is_softmax_in_fp32(workload)
    matrices = 2 + SOFTMAX_BACKWARD_TEMPORARIES[workload.device_type]
    element = matrices * FP32_BYTES - BF16_BYTES if in_fp32 else matrices * workload.product_bytes
    return workload.heads_bytes + element * workload.score_elements


def _softmax_bytes(workload: Workload) -> int:
    """Count the bytes of scores and softmax: 2e per element, under autocast on CUDA 2 + 4 + 4; 0 when fused."""
    if workload.is_fused:
        return 0
    element = BF16_BYTES + 2 * FP32_BYTES if _is_softmax_in_fp32(workload) else 2 * workload.product_bytes
    return element * workload.score_elements


def _is_softmax_in_fp32(workload: Workload) -> bool:
    """Tell whether eager attention's softmax runs in fp32 between products in bf16."""
    return workload.is_autocast and workload.device_type == "cuda" and not workload.is_fused
