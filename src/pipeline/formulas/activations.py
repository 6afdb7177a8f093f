"""The activations that a forward pass of the transformer saves for its backward pass, in closed form.

Symbols: V vocabulary size, d d_model, f d_ff, H heads, L layers, B batch size, S sequence length, T = BS tokens,
e bytes per element of the matrix products' inputs: 4 in fp32, 2 under autocast to bf16. Master weights, the residual
stream and the norms' saved tensors stay in fp32. A tensor that several operations save counts once.

Tests count the tensors of small models on a CPU; a recorded training step of 2.7B in fp32 on an H200 confirms the
formulas on a GPU. CUDA differs in two ways: RMSNorm is one fused operation there (as that recording shows), and
autocast runs softmax in fp32 (as PyTorch's autocast_mode.h says).
"""

from dataclasses import dataclass

from pipeline.formulas.checkpointing import inputs_kept_by_forward
from pipeline.formulas.parameters import block_matrix_elements, head_matrix_elements
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES

ATTENTIONS = ("eager", "flash")


@dataclass(frozen=True)
class Workload:
    """Everything that the memory of a training step depends on.

    `attention` is a name in `pipeline.attention.ATTENTION`; only "eager" saves score matrices. `device_type` is "cpu"
    or "cuda". `checkpointing` is one of `checkpointing.KINDS` and matters if `checkpoint_every` is above 0.
    `has_bf16_weights`: the forward pass sees bf16 weights, so the residual stream is bf16 too and autocast makes no
    copies for products.
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
        """Use the size's own vocabulary if it has one."""
        object.__setattr__(self, "vocab_size", self.size.vocabulary(self.vocab_size))

    @property
    def tokens(self) -> int:
        """T = BS."""
        return self.batch_size * self.seq_len

    @property
    def score_elements(self) -> int:
        """BHS², the elements of one layer's score matrices."""
        return self.tokens * self.size.num_heads * self.seq_len

    @property
    def is_autocast(self) -> bool:
        """Whether the matrix products read low-precision copies."""
        return self.precision == "bf16"

    @property
    def is_fused(self) -> bool:
        """Whether attention saves no score matrix."""
        return self.attention != "eager"

    @property
    def product_bytes(self) -> int:
        """The bytes e per element of the matrix products' inputs."""
        return BF16_BYTES if self.is_autocast else FP32_BYTES

    @property
    def softmax_element_bytes(self) -> int:
        """The bytes per element of eager attention's softmax: 4; under autocast on a CPU 2."""
        return FP32_BYTES if self.device_type == "cuda" else self.product_bytes

    @property
    def softmax_copy_bytes(self) -> int:
        """The bytes of the softmax's input or output in bf16 if it runs in fp32 between bf16 products, else 0."""
        return BF16_BYTES * self.score_elements if self.is_autocast and self.device_type == "cuda" else 0

    @property
    def softmax_bytes(self) -> int:
        """The bytes that attention saves for its softmax: if fused the LSE (4BHS), else its output and any copy."""
        if self.is_fused:
            return FP32_BYTES * self.tokens * self.size.num_heads
        return self.softmax_element_bytes * self.score_elements + self.softmax_copy_bytes

    @property
    def heads_bytes(self) -> int:
        """The bytes of all heads' queries, or of keys repeated for all heads: eTd; with wider heads eT·H·head_dim."""
        return self.product_bytes * self.tokens * self.size.attention_width

    @property
    def hidden_bytes(self) -> int:
        """The bytes of one hidden (T, f) tensor of SwiGLU: eTf."""
        return self.product_bytes * self.tokens * self.size.d_ff

    @property
    def copies_for_products(self) -> bool:
        """Whether each matrix product makes its own low-precision copies of what it reads."""
        return self.is_autocast and not self.has_bf16_weights

    def weight_copy_bytes(self, elements: int) -> int:
        """Count the bytes of autocast's bf16 copies of matrices with this many elements; none in fp32.

        Autocast caches a copy until its region ends, even without gradients, and the backward pass needs it again.
        """
        return BF16_BYTES * elements if self.copies_for_products else 0


def residual_stream_bytes(workload: Workload) -> int:
    """Count the bytes of one tensor of the residual stream: 4Td, with bf16 weights 2Td."""
    element = BF16_BYTES if workload.has_bf16_weights else FP32_BYTES
    return element * workload.tokens * workload.size.d_model


def block_weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copies of one block's matrices, 2(4d² + 3df); none in fp32."""
    return workload.weight_copy_bytes(block_matrix_elements(workload.size))


def head_weight_copy_bytes(workload: Workload) -> int:
    """Count the bytes of the bf16 copy of the head, 2dV; none in fp32."""
    return workload.weight_copy_bytes(head_matrix_elements(workload.size, workload.vocab_size))


def block_bytes(workload: Workload) -> int:
    """Count all bytes that one block saves, without the bf16 copies of its weights."""
    return sum(_block_parts(workload).values())


def feed_forward_block_bytes(workload: Workload) -> int:
    """Count the bytes that the feed-forward half of a block saves, with its norm."""
    return _block_parts(workload)["feed_forward"] + _norm_bytes(workload)


def head_bytes(workload: Workload) -> int:
    """Count the bytes that everything after the blocks saves.

    The last norm, the head's input, and for the loss the log-softmax in fp32 (4TV) and the total weight of the mean
    (one number). Neither the logits nor the rotations of q and k save anything.
    """
    loss = FP32_BYTES * workload.tokens * workload.vocab_size + FP32_BYTES
    return _norm_bytes(workload) + _product_input_bytes(workload, products=1) + loss


def kept_attention_bytes(workload: Workload, blocks: int) -> int:
    """Count the bytes of the attention outputs that selective checkpointing keeps: eTd + 4BHS for each block.

    These are the output and the LSE of each query; only attention that is a single operator can be kept.
    """
    if not workload.checkpoint_every or workload.checkpointing != "selective":
        return 0
    return blocks * (workload.heads_bytes + workload.softmax_bytes)


def saved_bytes(workload: Workload) -> int:
    """Count all bytes alive between the forward pass and its backward pass.

    With checkpointing a few residual-stream tensors, the inputs of blocks, replace the blocks' saved tensors, and only
    the head's weight copy outlives the forward pass.
    """
    every, layers = workload.checkpoint_every, workload.size.num_layers
    if every:
        inputs = inputs_kept_by_forward(layers, every, workload.checkpointing)
        of_blocks = inputs * residual_stream_bytes(workload) + kept_attention_bytes(workload, layers)
    else:
        of_blocks = layers * (block_bytes(workload) + block_weight_copy_bytes(workload))
    return of_blocks + head_bytes(workload) + head_weight_copy_bytes(workload)


def bytes_by_part(workload: Workload) -> dict[str, int]:
    """Count the saved bytes by part of the model, without checkpointing and without weight copies.

    norms, attention, scores and feed_forward cover all layers. scores: what attention saves for its softmax (eager: the
    output; flash: the LSE); attention: everything else that it saves. head: the last norm, the head's input, the loss.
    """
    blocks = {part: workload.size.num_layers * count for part, count in _block_parts(workload).items()}
    return blocks | {"head": head_bytes(workload)}


def attention_bytes(workload: Workload) -> dict[str, int]:
    """Count the bytes of one layer's attention alone in fp32: inputs, kept and most.

    inputs: q, k and v. kept: what attention makes and saves; eager: the softmax's output, flash: the output and the
    LSE. most: the peak of what it makes during the forward pass; eager: scores and softmax, flash: only what is kept.
    This differs from `attention.saved_bytes`, which counts the scaled queries because a benchmark's caller holds q.
    """
    kept = workload.softmax_bytes + workload.heads_bytes * workload.is_fused
    return {"inputs": 3 * workload.heads_bytes, "kept": kept, "most": kept if workload.is_fused else 2 * kept}


def _block_parts(workload: Workload) -> dict[str, int]:
    """Count the bytes that one block saves, by part.

    Attention: the input of the q, k and v projections; q, k and v (3eTd; keys and values shared by query heads are
    saved repeated for each); the concatenated heads, which are the input of the output projection (eTd). Fused
    attention (FlashAttention-2: Dao 2023, algorithm 1) saves its output too. Feed-forward: the input of the gate and up
    projections, and 4eTf for SwiGLU: gate, silu(gate), up and their product, the input of the down projection.
    """
    heads = (5 if workload.is_fused else 4) * workload.heads_bytes
    return {
        "norms": 2 * _norm_bytes(workload),
        "attention": _product_input_bytes(workload, products=3) + heads,
        "scores": workload.softmax_bytes,
        "feed_forward": _product_input_bytes(workload, products=2) + 4 * workload.hidden_bytes,
    }


def _norm_bytes(workload: Workload) -> int:
    """Count the bytes that one RMSNorm saves: its input 4Td and the inverse root mean squares 4T.

    On a CPU the norm is a chain of operations, and the last product saves the normalised input too: 4Td more.
    """
    inputs = 1 if workload.device_type == "cuda" else 2
    return inputs * residual_stream_bytes(workload) + FP32_BYTES * workload.tokens


def _product_input_bytes(workload: Workload, products: int) -> int:
    """Count the bytes saved for one (T, d) tensor that several matrix products read.

    4Td in fp32, shared by all products; under autocast each product makes its own copy of 2Td.
    """
    copies = products if workload.copies_for_products else 1
    return copies * workload.product_bytes * workload.tokens * workload.size.d_model
