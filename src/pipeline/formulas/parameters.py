"""Parameters of the transformer in closed form.

Symbols: V vocabulary size, d d_model, f d_ff, L layers.
"""

from collections.abc import Iterable

from pipeline.formulas.sizes import SIZES, ModelSize, OwnSize
from pipeline.formulas.units import FP32_BYTES


def attention_matrices(size: ModelSize) -> list[int]:
    """Return the elements of one block's q, k, v and output projection."""
    queries, keys = size.d_model * size.attention_width, size.d_model * size.kv_width
    return [queries, keys, keys, queries]


def feed_forward_matrices(size: ModelSize) -> list[int]:
    """Return the elements of SwiGLU's gate, up and down in one block."""
    return [size.d_model * size.d_ff] * 3


def block_matrix_elements(size: ModelSize) -> int:
    """Count the elements of one block's matrices: 4d² of attention (q, k, v, output) and 3df of SwiGLU.

    If all query heads together have width q and all key heads k, attention has 2dq + 2dk.
    """
    return sum(attention_matrices(size)) + sum(feed_forward_matrices(size))


def block_parameter_count(size: ModelSize) -> int:
    """Count the parameters of one block: its matrices and two norms, 4d² + 3df + 2d."""
    return block_matrix_elements(size) + 2 * size.d_model


def head_matrix_elements(size: ModelSize, vocab_size: int) -> int:
    """Count the elements of the output projection, or of the embedding: dV, with the size's own vocabulary if any."""
    return size.d_model * size.vocabulary(vocab_size)


def parameter_count(size: ModelSize, vocab_size: int) -> int:
    """Count all parameters: embedding and head, the blocks, the last norm. 2Vd + L(4d² + 3df + 2d) + d.

    Vd instead of 2Vd if embedding and head are tied.
    """
    embedding_and_head = (1 if size.tie_embeddings else 2) * head_matrix_elements(size, vocab_size)
    return embedding_and_head + size.num_layers * block_parameter_count(size) + size.d_model


def left_out_parameter_count(size: OwnSize) -> int:
    """Count the parameters that the user's model has and ours leaves out: vectors in each block."""
    keys = 2 * size.kv_width
    vectors = {
        "bias": size.attention_width + keys,
        "output_bias": size.d_model,
        "mlp_bias": 2 * size.d_ff + size.d_model,
        "qk_norm": 2 * size.head_dim,
    }
    return size.num_layers * sum(vectors.get(word, 0) for word in size.without)


def parameter_bytes(size: ModelSize, vocab_size: int) -> int:
    """Count the bytes of the parameters in fp32: 4P."""
    return FP32_BYTES * parameter_count(size, vocab_size)


def by_size(names: Iterable[str]) -> list[str]:
    """Sort size names, including the user's own, by the parameters of their layers, smallest first."""
    return sorted(names, key=lambda name: SIZES[name].num_layers * block_parameter_count(SIZES[name]))


BY_SIZE = tuple(by_size(SIZES))
