"""A transformer language model with few passes over memory, made from the modules of a `TransformerLM`."""

import itertools
from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, noop_context_fn

from pipeline.attention import AttentionFunction
from pipeline.formulas.fused_step import LEVELS
from pipeline.model.checkpointing import keeping_attention
from pipeline.model.fused.attention_half import AttentionInputs, OutputProjection
from pipeline.model.fused.feed_forward import FeedForward
from pipeline.model.fused.linear_cross_entropy import linear_cross_entropy
from pipeline.model.fused.operations import Operations
from pipeline.model.transformer import TransformerBlock, TransformerLM
from pipeline.ranges import span


class FusedLM(nn.Module):
    """Map tokens and their successors to the mean cross-entropy, with the parameters of a `TransformerLM`.

    attention: a function of q, k, v and is_causal. levels: what each layer keeps for the backward pass, one of
    `formulas.fused_step.LEVELS`; the rest is computed again. loss_chunk: how many tokens' logits exist at once.

    The given model shares its parameters and its blocks' modules with this one.
    """

    def __init__(
        self,
        model: TransformerLM,
        operations: Operations,
        attention: AttentionFunction,
        levels: Sequence[str],
        loss_chunk: int | None = None,
    ) -> None:
        super().__init__()
        self.token_embedding = model.token_embedding
        blocks = cast("list[TransformerBlock]", list(model.layers))
        self.layers = nn.ModuleList(FusedBlock(block, operations, attention) for block in blocks)
        self.head = LossHead(model.final_norm, model.lm_head, operations, loss_chunk)
        self.keep(levels)

    @property
    def blocks(self) -> "list[FusedBlock]":
        """The layers."""
        return cast("list[FusedBlock]", list(self.layers))

    def keep(self, levels: Sequence[str]) -> None:
        """Set what each layer keeps from now on."""
        for layer, level in zip(self.blocks, levels, strict=True):
            layer.keeps = level

    def use(self, operations: Operations, attention: AttentionFunction) -> None:
        """Compute with these operations and this attention from now on."""
        self.head.operations = operations
        for layer in self.blocks:
            layer.operations, layer.attention_function = operations, attention

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss, in nats; tokens and targets are (batch, seq_len) int64."""
        x = self.token_embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x, targets)


class FusedBlock(nn.Module):
    """A `TransformerBlock` made of three autograd functions and attention; `keeps` is one of `LEVELS`."""

    def __init__(self, block: TransformerBlock, operations: Operations, attention: AttentionFunction) -> None:
        super().__init__()
        self.attention_norm, self.attention = block.attention_norm, block.attention
        self.feed_forward_norm, self.feed_forward = block.feed_forward_norm, block.feed_forward
        self.operations, self.attention_function = operations, attention
        self.keeps = LEVELS[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq_len, d_model) to the same shape."""
        if self.keeps not in ("input", "attention"):
            return self._compute(x, is_rerun=False)
        runs = itertools.count()
        return checkpoint(
            lambda x: self._compute(x, is_rerun=next(runs) > 0),
            x,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=keeping_attention if self.keeps == "attention" else noop_context_fn,
        )

    def _compute(self, x: Tensor, is_rerun: bool) -> Tensor:
        attention, feed_forward = self.attention, self.feed_forward
        q, k, v, x = AttentionInputs.apply(
            x,
            self.attention_norm.weight,
            attention.q_proj.weight,
            attention.k_proj.weight,
            attention.v_proj.weight,
            attention.rope.cos,
            attention.rope.sin,
            attention.head_dim,
            self.attention_norm.eps,
            self.operations,
        )
        if attention.queries_a_key > 1:
            k, v = (heads.repeat_interleave(attention.queries_a_key, dim=-3) for heads in (k, v))
        with span("attention"):
            heads = self.attention_function(q, k, v, True)
        attended = OutputProjection.apply(heads, attention.output_proj.weight)
        return FeedForward.apply(
            x,
            attended,
            self.feed_forward_norm.weight,
            feed_forward.gate_proj.weight,
            feed_forward.up_proj.weight,
            feed_forward.down_proj.weight,
            self.feed_forward_norm.eps,
            self.keeps == "gate_up",
            is_rerun,
            self.operations,
        )


class LossHead(nn.Module):
    """The last norm, and the head fused with the loss."""

    def __init__(self, final_norm: nn.RMSNorm, lm_head: nn.Linear, operations: Operations, chunk: int | None) -> None:
        super().__init__()
        self.final_norm, self.lm_head, self.operations, self.chunk = final_norm, lm_head, operations, chunk

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss, in nats; x is (batch, seq_len, d_model), targets (batch, seq_len)."""
        rows, weight = self.final_norm(x), self.lm_head.weight
        return linear_cross_entropy(rows, weight, targets, self.operations, chunk=self.chunk)
