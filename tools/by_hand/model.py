"""The transformer that the pipeline trains, written again in plain PyTorch."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

SIZES = {
    "tiny": {"d_model": 64, "d_ff": 256, "num_layers": 2, "num_heads": 2},
    "medium": {"d_model": 1024, "d_ff": 4096, "num_layers": 24, "num_heads": 16},
    "large": {"d_model": 1280, "d_ff": 5120, "num_layers": 36, "num_heads": 20},
    "xl": {"d_model": 1600, "d_ff": 6400, "num_layers": 48, "num_heads": 25},
    "2.7B": {"d_model": 2560, "d_ff": 10240, "num_layers": 32, "num_heads": 32},
}
VOCABULARY = 10_000


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention with the whole score matrix in memory; the softmax is in fp32, as under autocast."""
    scores = (q / math.sqrt(q.shape[-1])) @ k.transpose(-2, -1)
    scores += torch.full(scores.shape[-2:], -math.inf, dtype=scores.dtype, device=scores.device).triu_(1)
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention with PyTorch's own kernels."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute causal attention with the pipeline's Triton kernels."""
    from pipeline.attention import FlashAttentionTriton

    return FlashAttentionTriton.apply(q, k, v, True)


ATTENTION = {"eager": eager, "sdpa": sdpa, "flash": flash}


def attention_of(words: Sequence[str]) -> str:
    """Return the name of the attention that a change uses."""
    return next((name for name in ("flash", "sdpa") if name in words), "eager")


def linear(in_features: int, out_features: int) -> nn.Linear:
    """Make a linear layer without bias, with Glorot initialization."""
    made = nn.Linear(in_features, out_features, bias=False)
    nn.init.xavier_normal_(made.weight)
    return made


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary embeddings in fp32, pairing the two halves of each head."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1).to(x.dtype)


class Block(nn.Module):
    """Add attention, then SwiGLU, to the residual stream; each reads the normed stream."""

    def __init__(self, d_model: int, d_ff: int, num_heads: int, attend: Callable[[Tensor, Tensor, Tensor], Tensor]):
        super().__init__()
        self.head_dim, self.attend = d_model // num_heads, attend
        self.first_norm = nn.RMSNorm(d_model, eps=1e-5)
        self.q, self.k, self.v, self.out = (linear(d_model, d_model) for _ in range(4))
        self.second_norm = nn.RMSNorm(d_model, eps=1e-5)
        self.gate, self.up, self.down = linear(d_model, d_ff), linear(d_model, d_ff), linear(d_ff, d_model)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map (batch, context, d_model) to the same shape."""
        normed = self.first_norm(x)
        q, k, v = (each(normed).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for each in (self.q, self.k, self.v))
        heads = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        normed = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


class Transformer(nn.Module):
    """Map tokens (batch, context) to the logits of the next ones."""

    def __init__(self, words: Sequence[str], context: int, d_model: int, d_ff: int, num_layers: int, num_heads: int):
        super().__init__()
        attend = ATTENTION[attention_of(words)]
        self.has_checkpoints = "checkpointing" in words
        self.embedding = nn.Embedding(VOCABULARY, d_model)
        self.blocks = nn.ModuleList(Block(d_model, d_ff, num_heads, attend) for _ in range(num_layers))
        self.norm, self.head = nn.RMSNorm(d_model, eps=1e-5), linear(d_model, VOCABULARY)
        head_dim = d_model // num_heads
        turns = 10_000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), turns)
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute the logits, (batch, context, vocabulary)."""
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.has_checkpoints:
                x = checkpoint(block, x, self.cos, self.sin, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))
