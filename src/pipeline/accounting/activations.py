"""What the forward pass of the measured transformer leaves for its backward pass, part by part."""

from pipeline.model.sizes import ModelSize

ATTENTIONS = ("eager", "flash")


def transformer_elements(
    size: ModelSize, vocab_size: int, batch_size: int, seq_len: int, attention: str = "eager"
) -> dict[str, int]:
    """Count the numbers that each part of the model keeps; one that two operations share counts once.

    For each of L·T layers and tokens:

    - norms: 2·D + 2, the input of either norm and its inverse root mean square;
    - attention: 5·D, the input of the three projections, q, k, v and the input of the output projection; a flash kernel
      keeps its output in a layout of its own too, D more;
    - scores: H·S, the softmax's output; flash: H, the log-sum-exp;
    - feed_forward: D + 4·F, its input, the gate before and after silu, up, and their product.

    After the layers, head: T·(2·D + 1 + V), the last norm, the head's input and the log-probabilities.

    That is with a fused norm. In pieces, as on PyTorch's CPU, each norm keeps what it normalised as well: D more.
    Raises ValueError for an unknown attention.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"attention={attention!r}: must be one of {', '.join(ATTENTIONS)}")
    tokens, d, f, flash = batch_size * seq_len, size.d_model, size.d_ff, attention == "flash"
    layer_tokens = size.num_layers * tokens
    return {
        "norms": layer_tokens * (2 * d + 2),
        "attention": layer_tokens * (6 if flash else 5) * d,
        "scores": layer_tokens * size.num_heads * (1 if flash else seq_len),
        "feed_forward": layer_tokens * (d + 4 * f),
        "head": tokens * (2 * d + 1 + vocab_size),
    }


def attention_elements(
    batch_size: int, num_heads: int, seq_len: int, head_dim: int, attention: str = "eager"
) -> dict[str, int]:
    """Count the numbers that attention alone keeps for its backward pass, and its scores while it runs.

    inputs: q, k and v, 3·B·H·S·h; kept: eager, the softmax's output, B·H·S²; flash, the output and the log-sum-exp,
    B·H·S·(h + 1); most: those of B·H·S that are there at once at worst in the forward pass: eager, scores and softmax,
    2·B·H·S²; flash, nothing beyond what it keeps. Raises ValueError for an unknown attention.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"attention={attention!r}: must be one of {', '.join(ATTENTIONS)}")
    queries = batch_size * num_heads * seq_len
    kept = queries * (seq_len if attention == "eager" else head_dim + 1)
    return {"inputs": 3 * queries * head_dim, "kept": kept, "most": 2 * kept if attention == "eager" else kept}
