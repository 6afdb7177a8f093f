"""A transformer language model in few passes over memory, made from the modules of `TransformerLM`."""

from typing import cast

from torch import Tensor, nn

from pipeline.attention import AttentionFunction
from pipeline.model.fused.attention_half import AttentionInputs, OutputProjection
from pipeline.model.fused.feed_forward import FeedForward
from pipeline.model.fused.linear_cross_entropy import linear_cross_entropy
from pipeline.model.fused.operations import Operations
from pipeline.model.transformer import TransformerBlock, TransformerLM
from pipeline.ranges import span


class FusedLM(nn.Module):
    """Map tokens and their successors to the mean cross-entropy, by the parameters of a `TransformerLM`.

    attention: on q, k, v and is_causal. layers_that_keep: how many layers, the last ones, keep the products of gate and
    up for the backward pass; the others compute them again. A layer that keeps them holds the norms' inputs, q, k, v,
    the attention's output and log-sum-exp, and those products; all else is computed again.

    The model that is given shares its parameters with this one, and its blocks' modules too.
    """

    def __init__(
        self, model: TransformerLM, operations: Operations, attention: AttentionFunction, layers_that_keep: int
    ) -> None:
        super().__init__()
        self.token_embedding = model.token_embedding
        blocks = cast("list[TransformerBlock]", list(model.layers))
        self.layers = nn.ModuleList(FusedBlock(block, operations, attention) for block in blocks)
        self.head = LossHead(model.final_norm, model.lm_head, operations)
        self.keep(layers_that_keep)

    @property
    def blocks(self) -> "list[FusedBlock]":
        """The layers."""
        return cast("list[FusedBlock]", list(self.layers))

    def keep(self, layers: int) -> None:
        """Let the last so many layers keep the products of gate and up."""
        # The last layers: theirs are needed first, and are gone before other temporaries come.
        for number, layer in enumerate(self.blocks):
            layer.keeps_products = number >= len(self.layers) - layers

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
    """A `TransformerBlock` of three autograd functions and the attention between them."""

    def __init__(self, block: TransformerBlock, operations: Operations, attention: AttentionFunction) -> None:
        super().__init__()
        self.attention_norm, self.attention = block.attention_norm, block.attention
        self.feed_forward_norm, self.feed_forward = block.feed_forward_norm, block.feed_forward
        self.operations, self.attention_function = operations, attention
        self.keeps_products = False

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, seq_len, d_model) to the same shape."""
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
            self.keeps_products,
            self.operations,
        )


class LossHead(nn.Module):
    """The last norm, and the head fused with the loss."""

    def __init__(self, final_norm: nn.RMSNorm, lm_head: nn.Linear, operations: Operations) -> None:
        super().__init__()
        self.final_norm, self.lm_head, self.operations = final_norm, lm_head, operations

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss, in nats; x is (batch, seq_len, d_model), targets (batch, seq_len)."""
        return linear_cross_entropy(self.final_norm(x), self.lm_head.weight, targets, self.operations)
