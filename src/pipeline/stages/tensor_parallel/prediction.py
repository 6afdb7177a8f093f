"""Predict the time of each way by the course's formulas, from rates measured in the same cell.

A transformer block counts as two of the layers of `formulas.feed_forward_parallel`: SwiGLU, three matrices D × F, and
attention's projections, four D × D; each exchanges activations once per pass. Attention's own products, which the
formulas leave out, count too: only the scores that the causal mask leaves, divided among the ranks. Context parallelism
sends keys and values around a ring, once forward, and backward with their gradients (Liu et al. 2023).
"""

from dataclasses import dataclass

from pipeline.formulas import attention
from pipeline.formulas.collectives import all_gather_bus_factor
from pipeline.formulas.feed_forward_parallel import Layer, cost
from pipeline.formulas.mesh import Block
from pipeline.formulas.parameters import attention_matrices, head_matrix_elements
from pipeline.formulas.sizes import SIZES
from pipeline.formulas.units import BF16_BYTES, FP32_BYTES
from pipeline.stages.tensor_parallel.cell import TENSOR_RANKS, Cell

PASSES = ("forward", "backward")


@dataclass(frozen=True)
class Rates:
    """What a rank reaches: FLOP/s of a large matrix product, bytes/s sent in all-reduces of both sizes."""

    flops_per_s: float
    activation_bytes_per_s: float
    weight_bytes_per_s: float


@dataclass(frozen=True)
class Work:
    """What one rank does in one pass: FLOPs, and bytes sent of activations and of weights with their gradients."""

    flops: float
    activation_bytes: float
    weight_bytes: float

    def compute_ms(self, rates: Rates) -> float:
        """Return the time of the products."""
        return 1e3 * self.flops / rates.flops_per_s

    def communication_ms(self, rates: Rates) -> float:
        """Return the time of both transfers, one after the other."""
        seconds = self.activation_bytes / rates.activation_bytes_per_s + self.weight_bytes / rates.weight_bytes_per_s
        return 1e3 * seconds


def shares(impl: str, ranks: int) -> tuple[int, int]:
    """Return over how many ranks the batch (and the weights to gather) and a matrix's width are divided."""
    every = {
        "none": (1, 1),
        "tensor": (1, ranks),
        "sequence": (1, ranks),
        "fsdp": (ranks, 1),
        "fsdp_tensor": (ranks // TENSOR_RANKS, TENSOR_RANKS),
        "context": (ranks, 1),
    }
    return every[impl]


def predicted(impl: str, cell: Cell, vocab_size: int, phase: str) -> Work:
    """Return what one rank does in a pass (one of PASSES) of a block, or of a whole model."""
    size = SIZES[cell.size]
    x, y = shares(impl, cell.world_size)
    tokens = cell.batch_size * cell.context_length
    elements = {"bf16": BF16_BYTES, "fp32": FP32_BYTES}[cell.precision] / BF16_BYTES
    # Four with as many heads for keys as for queries, fewer if queries share keys.
    projections = sum(attention_matrices(size)) / (size.d_model * size.attention_width)
    layers = (
        Block(size.d_model, size.d_ff, 3),
        Block(size.d_model, size.attention_width, projections),  # type: ignore[arg-type]  # may be a fraction
    )
    costs = [cost(Layer(each, tokens, 0, 0), phase, x, y) for each in layers]
    shape = attention.Shape(cell.batch_size, size.num_heads, cell.context_length, size.head_dim, is_causal=True)
    ring_bytes = 0.0
    if impl == "context":
        moved = {"forward": 1, "backward": 2}[phase]
        ring_bytes = moved * all_gather_bus_factor(x) * BF16_BYTES * 2 * tokens * size.kv_width
    flops = sum(each.flops for each in costs) + attention.pass_flops(shape, phase) / (x * y)
    activation_bytes = sum(each.activation_bytes for each in costs) + ring_bytes
    weight_bytes = sum(each.weight_bytes for each in costs)
    if cell.what == "block":
        return Work(flops, elements * activation_bytes, elements * weight_bytes)
    head = head_matrix_elements(size, vocab_size)
    passes = PASSES.index(phase) + 1
    # The embedding is divided, gathered and scattered like the head, but multiplies nothing. Tensor parallelism sums
    # its output over ranks in the forward pass, and the gradient of the head's input in the backward pass.
    ends_bytes = 2 * passes * all_gather_bus_factor(x) * BF16_BYTES * head / y
    return Work(
        size.num_layers * flops + passes * 2 * tokens * head / (x * y),
        elements * (size.num_layers * activation_bytes + costs[0].activation_bytes),
        elements * (size.num_layers * weight_bytes + ends_bytes),
    )
