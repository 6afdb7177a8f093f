"""A decoder-only transformer with pre-norm RMSNorm, rotary positions, SwiGLU and no biases."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeline.attention import ATTENTION, AttentionFunction
from pipeline.model.checkpointing import SELECTABLE_ATTENTIONS, runner
from pipeline.ranges import span

ROPE_THETA = 10_000.0
RMS_NORM_EPS = 1e-5
INIT_CUTOFF_STDS = 3.0


class TransformerLM(nn.Module):
    """Map each token to the logits of the next one.

    `attention` is a name in `pipeline.attention.ATTENTION` or a function. With `checkpoint_every` k above 0, the
    backward pass runs blocks again, at most k at once (activation checkpointing; `checkpointing` says how):

    segments: only the input of every k-th block is kept (Chen et al. 2016).
    recursive: only the inputs of both halves are kept; a half that runs again does the same, down to k blocks.
    selective: like segments, but attention's outputs are kept too, so attention does not run again.

    With `num_kv_heads`, groups of query heads share that many heads of keys and values (GQA: Ainslie et al. 2023).
    `head_dim` is the width of a head, by default d_model / num_heads. With `tie_embeddings`, embedding and head share
    one matrix, drawn like a head's.

    Raises ValueError if `attention` is an unknown name, `num_kv_heads` does not divide `num_heads`, `num_heads` does
    not divide `d_model` (unless `head_dim` is given), the head dimension is odd, or the checkpointing is invalid.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        attention: str | AttentionFunction = "eager",
        checkpoint_every: int = 0,
        checkpointing: str = "segments",
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        tie_embeddings: bool = False,
    ):
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        head_dim = _checked_head_dim(d_model, num_heads, num_kv_heads, head_dim)
        attention_function = _resolve_attention(attention)
        if checkpointing == "selective" and isinstance(attention, str) and attention not in SELECTABLE_ATTENTIONS:
            selectable = ", ".join(SELECTABLE_ATTENTIONS)
            raise ValueError(f"attention={attention!r}: must be one of {selectable} with checkpointing='selective'")
        self.context_length = context_length
        self.run_layers = runner(checkpoint_every, checkpointing)
        self.token_embedding = Embedding(vocab_size, d_model)
        # All layers share one table of angles.
        rope = RotaryEmbedding(head_dim, context_length)
        self.layers = nn.ModuleList(
            TransformerBlock(d_model, num_heads, num_kv_heads, head_dim, d_ff, rope, attention_function)
            for _ in range(num_layers)
        )
        self.final_norm = nn.RMSNorm(d_model, eps=RMS_NORM_EPS)
        self.lm_head = Linear(d_model, vocab_size)
        if tie_embeddings:
            self.token_embedding.weight = self.lm_head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits.

        Shapes: tokens is (batch, seq_len) int64, the result is (batch, seq_len, vocab_size).
        Raises ValueError if seq_len is above the context length.
        """
        seq_len = tokens.shape[-1]
        if seq_len > self.context_length:
            raise ValueError(f"seq_len={seq_len}: must be at most context_length={self.context_length}")
        x = self.run_layers(list(self.layers), self.token_embedding(tokens))
        return self.lm_head(self.final_norm(x))


class TransformerBlock(nn.Module):
    """Add causal self-attention, then a feed-forward network, to the residual stream."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        d_ff: int,
        rope: "RotaryEmbedding",
        attention_function: AttentionFunction,
    ):
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model, eps=RMS_NORM_EPS)
        self.attention = CausalSelfAttention(d_model, num_heads, num_kv_heads, head_dim, rope, attention_function)
        self.feed_forward_norm = nn.RMSNorm(d_model, eps=RMS_NORM_EPS)
        self.feed_forward = SwiGLU(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq_len, d_model) to the same shape."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class CausalSelfAttention(nn.Module):
    """Let each position attend to itself and all earlier ones, in `num_heads` heads of width `head_dim`.

    Each head of keys and values serves num_heads / num_kv_heads heads of queries.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope: "RotaryEmbedding",
        attention_function: AttentionFunction,
    ):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.queries_a_key = num_heads // num_kv_heads
        width, kv_width = num_heads * head_dim, num_kv_heads * head_dim
        self.rope = rope
        self.attention_function = attention_function
        self.q_proj = Linear(d_model, width)
        self.k_proj = Linear(d_model, kv_width)
        self.v_proj = Linear(d_model, kv_width)
        self.output_proj = Linear(width, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq_len, d_model) to the same shape."""
        q = self.rope(self._split_heads(self.q_proj(x)))
        k = self.rope(self._split_heads(self.k_proj(x)))
        v = self._split_heads(self.v_proj(x))
        if self.queries_a_key > 1:
            k, v = (heads.repeat_interleave(self.queries_a_key, dim=-3) for heads in (k, v))
        with span("attention"):
            heads = self.attention_function(q, k, v, True)
        return self.output_proj(heads.transpose(-3, -2).flatten(-2))

    def _split_heads(self, x: Tensor) -> Tensor:
        """Turn (batch, seq_len, width) into (batch, width / head_dim, seq_len, head_dim)."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2)


class RotaryEmbedding(nn.Module):
    """Rotate queries and keys by angles that grow with their position.

    Dimension i is paired with i + head_dim / 2 and turned by position · θ^(-2i / head_dim). Formula: Su et al. 2021,
    section 3.4.2, which pairs neighbours; the two pairings differ by a permutation of the weights that make q and k.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, context_length: int):
        super().__init__()
        frequencies = ROPE_THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate x, of shape (..., seq_len, head_dim), by positions 0 to seq_len - 1; the result has x's dtype."""
        seq_len = x.shape[-2]
        cos, sin = self.cos[:seq_len], self.sin[:seq_len]
        first, second = x.chunk(2, dim=-1)
        # The fp32 tables promote a low-precision x: it is rotated in fp32 and rounded once.
        rotated = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
        return rotated.to(x.dtype)


class SwiGLU(nn.Module):
    """Apply down(silu(gate(x)) · up(x)) to each position. Formula: Shazeer 2020, equation 6."""

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.gate_proj = Linear(d_model, d_ff)
        self.up_proj = Linear(d_model, d_ff)
        self.down_proj = Linear(d_ff, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_model) to the same shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Linear(nn.Linear):
    """Multiply by a matrix without bias; weights have Glorot's variance 2 / (in_features + out_features)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Redraw the weights."""
        _init_truncated_normal(self.weight, std=math.sqrt(2 / (self.in_features + self.out_features)))


class Embedding(nn.Embedding):
    """Look up a vector for each token; weights have variance 1."""

    def reset_parameters(self) -> None:
        """Redraw the vectors."""
        _init_truncated_normal(self.weight, std=1.0)


def _init_truncated_normal(weight: Tensor, std: float) -> None:
    cutoff = INIT_CUTOFF_STDS * std
    nn.init.trunc_normal_(weight, std=std, a=-cutoff, b=cutoff)


def _checked_head_dim(d_model: int, num_heads: int, num_kv_heads: int, head_dim: int | None) -> int:
    if num_heads % num_kv_heads != 0:
        raise ValueError(f"num_kv_heads={num_kv_heads}: must divide num_heads={num_heads}")
    if head_dim is None:
        if d_model % num_heads != 0:
            raise ValueError(f"num_heads={num_heads}: must divide d_model={d_model}")
        head_dim = d_model // num_heads
    if head_dim % 2 != 0:
        raise ValueError(f"head_dim={head_dim}: must be even for rotary positions")
    return head_dim


def _resolve_attention(attention: str | AttentionFunction) -> AttentionFunction:
    if not isinstance(attention, str):
        return attention
    if attention not in ATTENTION:
        raise ValueError(f"attention={attention!r}: must be one of {', '.join(ATTENTION)}")
    return ATTENTION[attention]
