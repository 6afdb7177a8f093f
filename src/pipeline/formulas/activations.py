"""What a forward pass keeps for its backward pass, term by term, in closed form. Imports no torch.

Symbols: V vocabulary, d d_model, f d_ff, H heads, L layers, B batch, S sequence length, T = BS tokens, e bytes of
an element that the matrix products read: 4 in fp32, 2 under autocast to bf16. Masters, the residual stream and
what the norms keep stay in fp32. A tensor that several operations keep counts once.

Counted tensors of small models bear the formulas out on the CPU, and one training step of 2.7B in fp32, recorded on
an H200, bears them out on a GPU. CUDA's kernels keep something else in two places: RMSNorm is one fused operation there
(as that recording shows), and autocast runs softmax in fp32 (as PyTorch's autocast_mode.h says).
"""

from dataclasses import dataclass

from pipeline.formulas.sizes import ModelSize

FP32_BYTES = 4
BF16_BYTES = 2
INT64_BYTES = 8

Terms = dict[str, int]


@dataclass(frozen=True)
class Workload:
    """Say what is trained and how: all that the memory of a training step depends on.

    `attention` is a name in `pipeline.attention.ATTENTION`; all but "eager" keep no score matrix. `device_type`
    is "cpu" or "cuda".
    """

    size: ModelSize
    vocab_size: int
    batch_size: int
    seq_len: int
    precision: str = "fp32"
    attention: str = "eager"
    checkpoint_every: int = 0
    device_type: str = "cuda"

    @property
    def tokens(self) -> int:
        """T = BS."""
        return self.batch_size * self.seq_len

    @property
    def product_bytes(self) -> int:
        """The bytes e of an element that the matrix products read."""
        return BF16_BYTES if self.precision == "bf16" else FP32_BYTES

    @property
    def score_elements(self) -> int:
        """BHS², the elements of one layer's score matrices."""
        return self.batch_size * self.size.num_heads * self.seq_len**2

    @property
    def is_autocast(self) -> bool:
        """Whether the matrix products read low-precision copies."""
        return self.precision == "bf16"

    @property
    def is_fused(self) -> bool:
        """Whether attention keeps no score matrix."""
        return self.attention != "eager"


def residual_stream_bytes(workload: Workload) -> int:
    """Count the bytes of one tensor of the residual stream: 4Td."""
    return FP32_BYTES * workload.tokens * workload.size.d_model


def norm_bytes(workload: Workload) -> int:
    """Count what one RMSNorm keeps: its input 4Td and the inverse root mean squares 4T.

    On a CPU the norm is a chain of operations, whose last product keeps the normalised input too: 4Td more.
    """
    inputs = 1 if workload.device_type == "cuda" else 2
    return inputs * residual_stream_bytes(workload) + FP32_BYTES * workload.tokens


def product_input_bytes(workload: Workload, products: int) -> int:
    """Count what is kept of one (T, d) tensor that several matrix products read.

    4Td in fp32, where they share it; under autocast each makes a copy of its own: 2Td a product.
    """
    copies = products if workload.is_autocast else 1
    return copies * workload.product_bytes * workload.tokens * workload.size.d_model


def score_bytes(workload: Workload) -> int:
    """Count what eager attention keeps of BHS² scores: the softmax's output, once in fp32.

    Under autocast the last product reads bf16: 2 bytes an element on a CPU, where the softmax is in bf16 too;
    on CUDA 4 of the softmax in fp32 and 2 of the copy.
    """
    if not workload.is_autocast:
        return FP32_BYTES * workload.score_elements
    of_softmax = FP32_BYTES if workload.device_type == "cuda" else 0
    return (of_softmax + BF16_BYTES) * workload.score_elements


def softmax_bytes(workload: Workload) -> int:
    """Count what attention keeps of its softmax: eager, the scores, as `score_bytes`; fused, 4BHS of log-sum-exps."""
    if workload.is_fused:
        return FP32_BYTES * workload.tokens * workload.size.num_heads
    return score_bytes(workload)


def attention_core_bytes(workload: Workload) -> Terms:
    """Count what attention itself keeps: q, k and v (3eTd), and what it needs of the softmax, as `softmax_bytes`.

    Fused (FlashAttention-2: Dao 2023, algorithm 1), its output eTd too.
    """
    of_width = workload.product_bytes * workload.tokens * workload.size.d_model
    of_softmax = softmax_bytes(workload)
    if not workload.is_fused:
        return {"q, k, v": 3 * of_width, "attention scores": of_softmax}
    return {"q, k, v": 3 * of_width, "attention output, log-sum-exps": of_width + of_softmax}


def attention_block_bytes(workload: Workload) -> Terms:
    """Count what the attention half of a block keeps.

    Beside the attention itself: the norm, the input of the q, k and v projections, and the heads put together,
    the input of the output projection (eTd).
    """
    return {
        "norms": norm_bytes(workload),
        "q, k, v projections' input": product_input_bytes(workload, products=3),
        **attention_core_bytes(workload),
        "output projection's input": product_input_bytes(workload, products=1),
    }


def feed_forward_block_bytes(workload: Workload) -> Terms:
    """Count what the feed-forward half of a block keeps.

    The norm, the input of the gate and up projections, and 4eTf of SwiGLU: gate, silu(gate), up and their
    product, the input of the down projection.
    """
    return {
        "norms": norm_bytes(workload),
        "SwiGLU's input": product_input_bytes(workload, products=2),
        "SwiGLU": 4 * workload.product_bytes * workload.tokens * workload.size.d_ff,
    }


def block_bytes(workload: Workload) -> int:
    """Count all that one block keeps, without the bf16 copies of its weights."""
    return sum(attention_block_bytes(workload).values()) + sum(feed_forward_block_bytes(workload).values())


def head_bytes(workload: Workload) -> Terms:
    """Count what follows the blocks keeps.

    The last norm, the head's input, and of the loss the log-softmax in fp32, 4TV, and the total weight of the
    mean, one number. Neither the logits nor the rotations of q and k keep anything.
    """
    return {
        "final norm": norm_bytes(workload),
        "head's input": product_input_bytes(workload, products=1),
        "log-softmax of the loss": FP32_BYTES * workload.tokens * workload.vocab_size + FP32_BYTES,
    }


def block_weight_elements(size: ModelSize) -> int:
    """Count the elements of one block's matrices: 4d² + 3df."""
    return 4 * size.d_model**2 + 3 * size.d_model * size.d_ff


def head_weight_elements(workload: Workload) -> int:
    """Count the elements of the head: dV."""
    return workload.size.d_model * workload.vocab_size


def weight_copy_bytes(workload: Workload) -> int:
    """Count the bf16 copies that autocast makes of the matrices of all blocks and the head; none in fp32.

    2(L(4d² + 3df) + dV). A copy is cached until the autocast region ends, also without gradients, and the
    backward pass needs it again.
    """
    if not workload.is_autocast:
        return 0
    matrices = workload.size.num_layers * block_weight_elements(workload.size) + head_weight_elements(workload)
    return BF16_BYTES * matrices


def block_weight_copy_bytes(workload: Workload) -> int:
    """Count the bf16 copies of one block's matrices, 2(4d² + 3df); none in fp32."""
    return BF16_BYTES * block_weight_elements(workload.size) if workload.is_autocast else 0


def head_weight_copy_bytes(workload: Workload) -> int:
    """Count the bf16 copy of the head, 2dV; none in fp32."""
    return BF16_BYTES * head_weight_elements(workload) if workload.is_autocast else 0


def segment_lengths(workload: Workload) -> list[int]:
    """Return how many blocks are recomputed together, first segment first; without checkpointing one each."""
    every, layers = workload.checkpoint_every or 1, workload.size.num_layers
    return [min(every, layers - start) for start in range(0, layers, every)]


def saved_terms(workload: Workload) -> Terms:
    """Count, by term, all that lives between the forward pass and its backward pass.

    With checkpointing every k blocks, ⌈L/k⌉ residual-stream tensors stand for what the blocks would keep, and
    of the weight copies only the head's outlives the forward pass.
    """
    head = head_bytes(workload)
    if workload.checkpoint_every:
        checkpoints = len(segment_lengths(workload)) * residual_stream_bytes(workload)
        blocks = {"checkpoints": checkpoints}
        copies = head_weight_copy_bytes(workload)
    else:
        blocks = _all_blocks(workload)
        copies = weight_copy_bytes(workload)
    terms = blocks | head | {"bf16 copies of weights": copies}
    return {name: count for name, count in terms.items() if count}


def _all_blocks(workload: Workload) -> Terms:
    attention, feed_forward = attention_block_bytes(workload), feed_forward_block_bytes(workload)
    both = attention | feed_forward | {"norms": attention["norms"] + feed_forward["norms"]}
    return {name: workload.size.num_layers * count for name, count in both.items()}
