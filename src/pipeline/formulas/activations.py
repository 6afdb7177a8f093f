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
        return BF16_BYTES if self.is_autocast else FP32_BYTES

    @property
    def score_elements(self) -> int:
        """BHS², the elements of one layer's score matrices."""
        return self._attention_shape.scores

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

    @property
    def heads_bytes(self) -> int:
        """The bytes of all heads' queries, or keys as the heads see them: eTd, eT·H·head_dim where heads are wider."""
        return self.product_bytes * self.tokens * self.size.attention_width

    @property
    def hidden_bytes(self) -> int:
        """The bytes of one hidden (T, f) tensor of SwiGLU: eTf."""
        return self.product_bytes * self.tokens * self.size.d_ff

    @property
    def softmax_bytes(self) -> int:
        """The bytes that attention saves for its softmax: fused the LSE of 4BHS; eager its output, 4BHS² in fp32.

        Under autocast the last product reads bf16: 2 bytes per element on a CPU, where the softmax is in bf16 too; on
        CUDA 4 for the softmax in fp32 and 2 for its copy.
        """
        if self.is_fused:
            return flash_saved_bytes(self._attention_shape)
        in_fp32 = not self.is_autocast or self.device_type == "cuda"
        return (FP32_BYTES * in_fp32 + BF16_BYTES * self.is_autocast) * self.score_elements

    @property
    def _attention_shape(self) -> Shape:
        return Shape(self.batch_size, self.size.num_heads, self.seq_len, self.size.head_dim, is_causal=True)


def residual_stream_bytes(workload: Workload) -> int:
    """Count the bytes of one tensor of the residual stream: 4Td, with bf16 weights 2Td."""
    element = BF16_BYTES if workload.has_bf16_weights else FP32_BYTES
    return element * workload.tokens * workload.size.d_model


def feed_forward_block_bytes(workload: Workload) -> int:
    """Count the bytes that the feed-forward half of a block saves, with its norm.

    The input of the gate and up projections, and 4eTf for SwiGLU: gate, silu(gate), up and their product, the input of
    the down projection.
    """
    return _norm_bytes(workload) + _product_input_bytes(workload, products=2) + 4 * workload.hidden_bytes


def block_bytes(workload: Workload) -> int:
    """Count all bytes that one block saves, without the bf16 copies of its weights."""
    return sum(_block_parts(workload).values())


def head_bytes(workload: Workload) -> int:
    """Count the bytes that everything after the blocks saves.

    The last norm, the head's input, and for the loss the log-softmax in fp32 (4TV) and the total weight of the mean
    (one number). Neither the logits nor the rotations of q and k save anything.
    """
    loss = FP32_BYTES * workload.tokens * workload.vocab_size + FP32_BYTES
    return _norm_bytes(workload) + _product_input_bytes(workload, products=1) + loss


def block_weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copies that autocast makes of one block's matrices, 2(4d² + 3df); none in fp32.

    Autocast caches a copy until its region ends, even without gradients, and the backward pass needs it again.
    """
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
    return blocks * (workload.heads_bytes + workload.softmax_bytes)


def saved_terms(workload: Workload) -> Terms:
    """Count, by part, all bytes alive between the forward pass and its backward pass.

    With checkpointing a few residual-stream tensors, the inputs of blocks, replace the blocks' saved tensors, and only
    the head's weight copy outlives the forward pass.
    """
    every, layers = workload.checkpoint_every, workload.size.num_layers
    copies = head_weight_copy_bytes(workload)
    if not every:
        copies += layers * block_weight_copy_bytes(workload)
        return bytes_by_part(workload) | {"bf16 copies of weights": copies}
    inputs = inputs_kept_by_forward(layers, every, workload.checkpointing)
    return {
        "checkpoints": inputs * residual_stream_bytes(workload),
        "kept outputs of attention": kept_attention_bytes(workload, layers),
        "head": head_bytes(workload),
        "bf16 copies of weights": copies,
    }


def bytes_by_part(workload: Workload) -> Terms:
    """Count what is saved without checkpointing by part of the model, without weight copies.

    norms, attention, scores and feed_forward cover all layers. scores: what attention saves for its softmax (eager: the
    output; flash: the LSE); attention: everything else that it saves. head: the last norm, the head's input, the loss.
    """
    blocks = {part: workload.size.num_layers * count for part, count in _block_parts(workload).items()}
    return blocks | {"head": head_bytes(workload)}


def attention_bytes(workload: Workload) -> Terms:
    """Count the bytes of one layer's attention itself in fp32: inputs, kept and most.

    inputs: q, k and v. kept: what attention makes and saves; eager: the softmax's output, flash: the output and the
    LSE. most: the peak of what it makes during the forward pass; eager: scores and softmax, flash: only what is kept.
    This differs from `attention.saved_bytes`, which counts the scaled queries because a benchmark's caller holds q.
    """
    kept = workload.softmax_bytes + workload.heads_bytes * workload.is_fused
    return {"inputs": 3 * workload.heads_bytes, "kept": kept, "most": kept if workload.is_fused else 2 * kept}


def _block_parts(workload: Workload) -> Terms:
    """Count what one block saves by part.

    Attention: the input of the q, k and v projections; q, k and v (3eTd; keys and values that query heads share are
    repeated for each, and saved so); the concatenated heads, which are the input of the output projection (eTd). Fused
    attention (FlashAttention-2: Dao 2023, algorithm 1) saves its output too.
    """
    norm = _norm_bytes(workload)
    heads = (5 if workload.is_fused else 4) * workload.heads_bytes
    return {
        "norms": 2 * norm,
        "attention": _product_input_bytes(workload, products=3) + heads,
        "scores": workload.softmax_bytes,
        "feed_forward": feed_forward_block_bytes(workload) - norm,
    }


def _norm_bytes(workload: Workload) -> int:
    """Count the bytes that one RMSNorm saves: its input 4Td and the inverse root mean squares 4T.

    On a CPU the norm is a chain of operations, and the last product saves the normalised input too: 4Td more.
    """
    inputs = 1 if workload.device_type == "cuda" else 2
    return inputs * residual_stream_bytes(workload) + FP32_BYTES * workload.tokens


def _product_input_bytes(workload: Workload, products: int) -> int:
    """Count the bytes saved for one (T, d) tensor that several matrix products read.

    4Td in fp32, where they share it; under autocast each product makes its own copy of 2Td.
    """
    copies = products if workload.copies_for_products else 1
    return copies * workload.product_bytes * workload.tokens * workload.size.d_model
