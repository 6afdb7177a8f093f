"""Predict each rank's memory in a fully sharded training step of the fused model, by what its blocks keep.

Symbols: T tokens per rank, d model width, f feed-forward width. Besides its input, each block may keep one of these
levels for its backward pass; each level includes those above it:

attention: attention's output. Attention need not run again, which saves some T FLOPs for each byte kept.
qkv: q, k, v and the sum before the feed-forward norm, whose products cost d FLOPs a byte.
gate_up: the outputs of gate and up, at the same cost.

A block that keeps only its input runs again as a whole. The last blocks are the ones that keep more: what they keep is
needed first, and freed before the gradients pile up.

Left out: NCCL's buffers, and what `peak_memory` leaves out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from pipeline.formulas.activations import Workload, residual_stream_bytes
from pipeline.formulas.fsdp import FsdpPlan, flat_layout
from pipeline.formulas.parameters import attention_matrices, feed_forward_matrices, head_matrix_elements
from pipeline.formulas.sizes import ModelSize
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES, INT64_BYTES

LEVELS = ("input", "attention", "qkv", "gate_up")


@dataclass(frozen=True)
class FusedStep:
    """A step with one sequence of `tokens` per rank, computed in bf16 from fp32 master weights, with AdamW.

    logits_bytes: the size of the chunk of logits held at one time.
    """

    size: ModelSize
    vocab_size: int
    tokens: int
    world_size: int
    logits_bytes: int

    @cached_property
    def plan(self) -> FsdpPlan:
        """The units: the embedding, each block, and the head with the last norm."""
        d, vocabulary = self.size.d_model, head_matrix_elements(self.size, self.vocab_size)
        block = [d, *attention_matrices(self.size), d, *feed_forward_matrices(self.size)]
        units = ([vocabulary], *[block] * self.size.num_layers, [d, vocabulary])
        layouts = tuple(flat_layout(unit, self.world_size) for unit in units)
        return FsdpPlan(layouts, replicated=0, itemsize=FP32_BYTES, compute_itemsize=BF16_BYTES)

    def kept_bytes(self, level: str) -> int:
        """Count the bytes that a block keeps at this level."""
        return sum(self._kept_at[one] for one in LEVELS[: LEVELS.index(level) + 1])

    def levels(self, upgrades: int) -> list[str]:
        """Return each block's level after this many one-level upgrades, which cycle through the blocks, last first."""
        layers = self.size.num_layers
        all_have, more = divmod(upgrades, layers)
        return [LEVELS[all_have + (number >= layers - more)] for number in range(layers)]

    def levels_within(self, available_bytes: float, most: str = LEVELS[-1]) -> list[str] | None:
        """Return the highest levels that fit into this memory, none above `most`; None if not even the inputs fit."""
        upgrades = range(LEVELS.index(most) * self.size.num_layers, -1, -1)
        choices = map(self.levels, upgrades)
        return next((levels for levels in choices if self.peak_bytes(levels) <= available_bytes), None)

    def peak_bytes(self, levels: Sequence[str]) -> int:
        """Predict the peak bytes: at the loss, in a block's backward pass, or where gradients are collected.

        The weights, both moments and the gathered units are there at all of these.
        """
        kept = list(accumulate(map(self.kept_bytes, levels)))
        # The last norm's input and output, the gradients of this and of the head, and a chunk of logits.
        head = BF16_BYTES * head_matrix_elements(self.size, self.vocab_size)
        at_loss = kept[-1] + 3 * self._stream + head + self.logits_bytes
        moments = [at_loss, self.plan.collecting_bytes + self._stream]
        arriving = self.plan.gradients_before()[1:]
        for keeps, kept_until_here, gradients in zip(reversed(levels), reversed(kept), arriving, strict=False):
            moments.append(kept_until_here + sum(gradients) + self._backward_bytes(keeps))
        return self._state_bytes + max(moments)

    @cached_property
    def _state_bytes(self) -> int:
        rotations, batch = FP32_BYTES * self.tokens * self.size.head_dim, 2 * INT64_BYTES * self.tokens
        return self.plan.persistent_bytes + self.plan.moments_bytes + self.plan.gathered_bytes + rotations + batch

    @cached_property
    def _step(self) -> Workload:
        return Workload(self.size, self.vocab_size, 1, self.tokens, "bf16", "flash", has_bf16_weights=True)

    @property
    def _stream(self) -> int:
        return residual_stream_bytes(self._step)

    @cached_property
    def _kept_at(self) -> dict[str, int]:
        heads = self._step.heads_bytes
        return {
            "input": self._stream,
            "attention": heads + self._step.softmax_bytes,
            "qkv": 3 * heads + self._stream,
            "gate_up": 2 * self._step.hidden_bytes,
        }

    def _backward_bytes(self, level: str) -> int:
        """Count the bytes of temporaries of a block's backward pass, including recomputed tensors and gradients."""
        index = LEVELS.index(level)
        attention_again = 0 if index > 0 else self._kept_at["attention"]
        qkv_again = 0 if index > 1 else self._kept_at["qkv"]
        stream, heads, hidden = self._stream, self._step.heads_bytes, self._step.hidden_bytes
        gradients = BF16_BYTES * self.plan.units[1].elements
        # gate, up and the gradient of their product, or three gradients; the norm's output and the result's gradient.
        feed_forward = 2 * stream + 3 * hidden + attention_again + qkv_again
        # The gradients of the output and of q, k and v; q's is summed in fp32 first.
        attention = stream + 6 * heads + gradients + attention_again + qkv_again
        # The gradients of q, k and v, before and after rotation, the norm's output, and two of the residual stream.
        inputs = 3 * stream + 6 * heads + gradients
        return max(feed_forward, attention, inputs)
