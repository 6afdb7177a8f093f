"""The activations that a forward pass of the transformer saves for its backward pass, in closed form.

Symbols: V vocabulary size, d d_model, f d_ff, H heads, L layers, B batch size, S sequence length, T = BS tokens,
e bytes per element of the matrix products' inputs: 4 in fp32, 2 under autocast to bf16. Master weights, the residual
stream and the norms' saved tensors stay in fp32. A tensor that several operations save counts once.

Tests count the tensors of small models on a CPU; a recorded training step of 2.7B in fp32 on an H200 confirms the
formulas on a GPU. CUDA differs in two ways: RMSNorm is one fused operation there (as that recording shows), and
autocast runs softmax in fp32 (as PyTorch's autocast_mode.h says).
"""

from dataclasses import dataclass

from pipeline.formulas.attention import Shape, flash_saved_bytes
from pipeline.formulas.checkpointing import inputs_kept_by_forward
from pipeline.formulas.parameters import block_matrix_elements, head_matrix_elements
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES

ATTENTIONS = ("eager", "flash")

Terms = dict[str, int]


@dataclass(frozen=True)
class Workload:
    """Everything that the memory of a training step depends on.

    `attention` is a name in `pipeline.attention.ATTENTION`; only "eager" saves score matrices. `device_type` is "cpu"
    or "cuda". `checkpointing` is one of `checkpointing.KINDS` and matters if `checkpoint_every` is above 0.
    `has_bf16_weights`: the forward pass sees weights in bf16, so that the residual stream is too, and autocast copies
    nothing for products.
    """

    size: ModelSize
    vocab_size: int
    batch_size: int
    seq_len: int
    precision: str = "fp32"
    attention: str = "eager"
    checkpoint_every: int = 0
    device_type: str = "cuda"
    checkpointing: str = "segments"
    has_bf16_weights: bool = False

    def __post_init__(self) -> None:
        """Take the vocabulary of a size that has its own."""
        object.__setattr__(self, "vocab_size", self.size.vocabulary(self.vocab_size))

    @property
    def tokens(self) -> int:
        """T = BS."""
        return self.batch_size * self.seq_len

    @property
    def product_bytes(self) -> int:
        """The bytes e per element of the matrix products' inputs."""
        return BF16_BYTES if self.precision == "bf16" else FP32_BYTES

    @property
    def score_elements(self) -> int:
        """BHS², the elements of one layer's score matrices."""
        return self.attention_shape.scores

    @property
    def attention_shape(self) -> Shape:
        """The attention problem of one layer."""
        return Shape(self.batch_size, self.size.num_heads, self.seq_len, self.size.head_dim, is_causal=True)

    @property
    def is_autocast(self) -> bool:
        """Whether the matrix products read low-precision copies."""
        return self.precision == "bf16"

    @property
    def copies_for_products(self) -> bool:
        """Whether each matrix product makes its own low-precision copies of what it reads."""
        return self.is_autocast and not self.has_bf16_weights

    @property
    def is_fused(self) -> bool:
        """Whether attention saves no score matrix."""
        return self.attention != "eager"


def residual_stream_bytes(workload: Workload) -> int:
    """Count the bytes of one tensor of the residual stream: 4Td, with bf16 weights 2Td."""
    element = BF16_BYTES if workload.has_bf16_weights else FP32_BYTES
    return element * workload.tokens * workload.size.d_model


def product_tensor_bytes(workload: Workload) -> int:
    """Count the bytes of one (T, d) tensor in the precision of the matrix products: eTd."""
    return workload.product_bytes * workload.tokens * workload.size.d_model


def attention_tensor_bytes(workload: Workload) -> int:
    """Count the bytes of all heads' queries, or keys as the heads see them, in the products' precision: eTd.

    eT·H·head_dim where a head has another width than d/H.
    """
    return workload.product_bytes * workload.tokens * workload.size.attention_width


def hidden_bytes(workload: Workload) -> int:
    """Count the bytes of one hidden (T, f) tensor of SwiGLU: eTf."""
    return workload.product_bytes * workload.tokens * workload.size.d_ff


def norm_bytes(workload: Workload) -> int:
    """Count the bytes that one RMSNorm saves: its input 4Td and the inverse root mean squares 4T.

    On a CPU the norm is a chain of operations, and the last product saves the normalised input too: 4Td more.
    """
    inputs = 1 if workload.device_type == "cuda" else 2
    return inputs * residual_stream_bytes(workload) + FP32_BYTES * workload.tokens


def product_input_bytes(workload: Workload, products: int) -> int:
    """Count the bytes saved for one (T, d) tensor that several matrix products read.

    4Td in fp32, where they share it; under autocast each product makes its own copy of 2Td.
    """
    return (products if workload.copies_for_products else 1) * product_tensor_bytes(workload)


def score_bytes(workload: Workload) -> int:
    """Count the bytes that eager attention saves for BHS² scores: the softmax's output, in fp32 4 bytes per element.

    Under autocast the last product reads bf16: 2 bytes per element on a CPU, where the softmax is in bf16 too; on CUDA
    4 for the softmax in fp32 and 2 for its copy.
    """
    if not workload.is_autocast:
        return FP32_BYTES * workload.score_elements
    softmax = FP32_BYTES if workload.device_type == "cuda" else 0
    return (softmax + BF16_BYTES) * workload.score_elements


def softmax_bytes(workload: Workload) -> int:
    """Count the bytes that attention saves for its softmax: eager `score_bytes`, fused the LSE of 4BHS."""
    return flash_saved_bytes(workload.attention_shape) if workload.is_fused else score_bytes(workload)


def attention_core_bytes(workload: Workload) -> Terms:
    """Count the bytes that attention itself saves: q, k and v (3eTd), and `softmax_bytes`.

    Keys and values that query heads share are repeated for each, and saved so.

    Fused attention (FlashAttention-2: Dao 2023, algorithm 1) saves its output too: eTd.
    """
    width, softmax = attention_tensor_bytes(workload), softmax_bytes(workload)
    if not workload.is_fused:
        return {"q, k, v": 3 * width, "attention scores": softmax}
    return {"q, k, v": 3 * width, "attention output, log-sum-exps": width + softmax}


def attention_block_bytes(workload: Workload) -> Terms:
    """Count the bytes that the attention half of a block saves.

    In addition to attention itself: the norm, the input of the q, k and v projections, and the concatenated heads,
    which are the input of the output projection (eTd).
    """
    return {
        "norms": norm_bytes(workload),
        "q, k, v projections' input": product_input_bytes(workload, products=3),
        **attention_core_bytes(workload),
        "output projection's input": attention_tensor_bytes(workload),
    }


def feed_forward_block_bytes(workload: Workload) -> Terms:
    """Count the bytes that the feed-forward half of a block saves.

    The norm, the input of the gate and up projections, and 4eTf for SwiGLU: gate, silu(gate), up and their product,
    the input of the down projection.
    """
    return {
        "norms": norm_bytes(workload),
        "SwiGLU's input": product_input_bytes(workload, products=2),
        "SwiGLU": 4 * hidden_bytes(workload),
    }


def block_bytes(workload: Workload) -> int:
    """Count all bytes that one block saves, without the bf16 copies of its weights."""
    return sum(attention_block_bytes(workload).values()) + sum(feed_forward_block_bytes(workload).values())


def head_bytes(workload: Workload) -> Terms:
    """Count the bytes that everything after the blocks saves.

    The last norm, the head's input, and for the loss the log-softmax in fp32 (4TV) and the total weight of the mean
    (one number). Neither the logits nor the rotations of q and k save anything.
    """
    return {
        "final norm": norm_bytes(workload),
        "head's input": product_input_bytes(workload, products=1),
        "log-softmax of the loss": FP32_BYTES * workload.tokens * workload.vocab_size + FP32_BYTES,
    }


def weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copies that autocast makes of all blocks' matrices and the head; none in fp32.

    2(L(4d² + 3df) + dV). Autocast caches a copy until its region ends, even without gradients, and the backward pass
    needs it again.
    """
    return workload.size.num_layers * block_weight_copy_bytes(workload) + head_weight_copy_bytes(workload)


def block_weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copies of one block's matrices, 2(4d² + 3df); none in fp32."""
    return BF16_BYTES * block_matrix_elements(workload.size) if workload.copies_for_products else 0


def head_weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copy of the head, 2dV; none in fp32."""
    elements = head_matrix_elements(workload.size, workload.vocab_size)
    return BF16_BYTES * elements if workload.copies_for_products else 0


def kept_attention_bytes(workload: Workload, blocks: int) -> int:
    """Count the bytes of the outputs of attention that selective checkpointing keeps: eTd + 4BHS for each block.

    These are the output and the log-sum-exp of each query; only attention that is one operator can be kept.
    """
    if not workload.checkpoint_every or workload.checkpointing != "selective":
        return 0
    return blocks * (attention_tensor_bytes(workload) + softmax_bytes(workload))


def saved_terms(workload: Workload) -> Terms:
    """Count, by term, all bytes alive between the forward pass and its backward pass.

    With checkpointing a few residual-stream tensors, the inputs of blocks, replace the blocks' saved tensors, and only
    the head's weight copy outlives the forward pass.
    """
    head, every, layers = head_bytes(workload), workload.checkpoint_every, workload.size.num_layers
    if every:
        inputs = inputs_kept_by_forward(layers, every, workload.checkpointing)
        blocks = {
            "checkpoints": inputs * residual_stream_bytes(workload),
            "kept outputs of attention": kept_attention_bytes(workload, layers),
        }
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


def bytes_by_part(workload: Workload) -> dict[str, int]:
    """Group the terms of `saved_terms` by part of the model, without checkpointing and without weight copies.

    norms, attention, scores and feed_forward cover all layers. scores: what attention saves for its softmax (eager: the
    output; flash: the LSE); attention: everything else that it saves. head: the last norm, the head's input, the loss.
    """
    attention = attention_block_bytes(workload)
    feed_forward = feed_forward_block_bytes(workload)
    norms = attention.pop("norms") + feed_forward.pop("norms")
    scores = softmax_bytes(workload)
    layer = {
        "norms": norms,
        "attention": sum(attention.values()) - scores,
        "scores": scores,
        "feed_forward": sum(feed_forward.values()),
    }
    layers = {part: workload.size.num_layers * count for part, count in layer.items()}
    return {**layers, "head": sum(head_bytes(workload).values())}


def attention_bytes(workload: Workload) -> dict[str, int]:
    """Count the bytes of one layer's attention itself in fp32: inputs, kept and most.

    inputs: q, k and v. kept: what attention makes and saves; eager: the softmax's output, flash: the output and the
    LSE. most: the peak of what it makes during the forward pass; eager: scores and softmax, flash: only what is kept.
    This differs from `attention.saved_bytes`, which counts the scaled queries because a benchmark's caller holds q.
    """
    core = attention_core_bytes(workload)
    inputs = core.pop("q, k, v")
    kept = sum(core.values())
    return {"inputs": inputs, "kept": kept, "most": kept if workload.is_fused else 2 * kept}
