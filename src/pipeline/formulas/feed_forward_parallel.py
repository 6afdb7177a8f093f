"""A gated feed-forward layer on N devices: FLOPs, bytes sent, and the most devices that stay compute bound.

The layer has m matrices D × F in 16 bits (m = 3 with a gate), T tokens over all devices; a device does C FLOP/s and
sends W bytes/s. X·Y = N devices: X shares of the batch, Y shares of each matrix's width F. Collectives are rings: for S
bytes a device sends (n − 1)/n·S in an all-gather or a reduce-scatter and twice that in an all-reduce. Computing and
communicating overlap, so a pass takes the longer of the two.

    a device's    FLOPs         weights over X (bytes sent)   activations over Y (bytes sent)
    forward       2mTDF/(XY)    FSDP: (X−1)/X·2mDF/Y          (Y−1)/Y·4TD/X
    backward      4mTDF/(XY)    (X−1)/X·4mDF/Y                (Y−1)/Y·4TD/X

Weights: FSDP gathers them in both passes and reduce-scatters their gradients in the backward pass; data parallelism
keeps them and all-reduces the gradients: the same bytes in the backward pass, none in the forward pass. Activations:
each device has a share of the width of the last matrix's input, so the output is a sum over Y, and so is the input's
gradient in the backward pass: an all-reduce of 2TD/X bytes each.
"""

import math
from dataclasses import dataclass

from pipeline.formulas.collectives import all_gather_bus_factor, all_reduce_bus_factor
from pipeline.formulas.mesh import Block
from pipeline.formulas.units import BF16_BYTES

PASSES = ("forward", "backward")
STRATEGIES = ("data_parallel", "fsdp", "tensor", "fsdp_tensor")


@dataclass(frozen=True)
class Layer:
    """The layer, its tokens over all devices, and a device's speeds: C in FLOP/s, and W in bytes/s sent."""

    block: Block
    tokens: float
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Cost:
    """What one device does in one pass: FLOPs, and bytes sent for weights and for activations."""

    flops: float
    weight_bytes: float
    activation_bytes: float

    def compute_s(self, layer: Layer) -> float:
        """Return the time of the products."""
        return self.flops / layer.flops_per_s

    def communication_s(self, layer: Layer, axes_overlap: bool = False) -> float:
        """Return the time of both transfers: the longer one if the axes overlap, else their sum."""
        both = self.weight_bytes / layer.bytes_per_s, self.activation_bytes / layer.bytes_per_s
        return max(both) if axes_overlap else sum(both)


def cost(layer: Layer, phase: str, batch_shares: float, width_shares: float = 1, keeps_weights: bool = False) -> Cost:
    """Return the cost of a pass (`phase` is one of PASSES) on one of X × Y devices; see the table above.

    `keeps_weights`: data parallelism instead of FSDP.
    """
    block, passes = layer.block, {"forward": 1, "backward": 2}[phase]
    weight_bytes = BF16_BYTES * block.weights / width_shares
    rounds = 0 if keeps_weights and phase == "forward" else passes
    output_bytes = BF16_BYTES * layer.tokens * block.d_model / batch_shares
    return Cost(
        flops=2 * passes * layer.tokens * block.weights / (batch_shares * width_shares),
        weight_bytes=rounds * all_gather_bus_factor(batch_shares) * weight_bytes,
        activation_bytes=all_reduce_bus_factor(width_shares) * output_bytes,
    )


def most_shares(layer: Layer, strategy: str, phase: str, axes_overlap: bool = False) -> tuple[float, float]:
    """Return the X and Y, not rounded, with the most devices at which computing takes as long as communicating.

    `strategy` is one of STRATEGIES, `phase` one of PASSES. Data parallelism sends nothing in the forward pass: its
    limit is that of the backward pass. With a and b from `_limits`, one axis alone allows X = 1 + a or Y = 1 + b. If
    two axes overlap, both hold at once: (1 + a)·(1 + b) devices. If they do not, (X−1)/a + (Y−1)/b ≤ 1; X = 1 + a·t and
    Y = 1 + b·(1−t) have the largest product at t = 1/2 + (1/b − 1/a)/2, clipped to [0, 1]: if t needs no clipping,
    (a + b + ab)²/(4ab) devices, for large a and b a quarter of those with overlap.
    """
    a, b = _limits(layer, phase)
    if strategy in ("data_parallel", "fsdp"):
        return 1 + a, 1
    if strategy == "tensor":
        return 1, 1 + b
    if axes_overlap:
        return 1 + a, 1 + b
    share = min(1.0, max(0.0, (1 + 1 / b - 1 / a) / 2))
    return 1 + a * share, 1 + b * (1 - share)


def most_whole_shares(layer: Layer, strategy: str, phase: str, axes_overlap: bool = False) -> tuple[int, int]:
    """Return the integers X and Y with the most devices X·Y at which computing takes at least as long as communicating.

    If two axes share the time, (X−1)/a + (Y−1)/b ≤ 1, rounding both limits down gives too few devices. With b ≤ a the
    best integer Y is near the best real one, y: being off by n costs n²·a/b devices, and rounding down costs less than
    a/b + y, so n² < 1 + y·b/a.
    """
    x, y = most_shares(layer, strategy, phase, axes_overlap)
    if strategy != "fsdp_tensor" or axes_overlap:
        return math.floor(x), math.floor(y)
    a, b = _limits(layer, phase)
    if b > a:
        return _whole_split(b, a, x)[::-1]
    return _whole_split(a, b, y)


def _limits(layer: Layer, phase: str) -> tuple[float, float]:
    """Return a and b: computing outlasts sending weights up to X = 1 + a, and sending activations up to Y = 1 + b.

    a = T·W/C: 2mTDF/(XYC) ≥ (X−1)/X·2mDF/(YW) means X − 1 ≤ T·W/C; in the backward pass both sides double, with data
    parallelism too. b = (m/2)·F·W/C, backward m·F·W/C: 2mTDF/(XYC) ≥ (Y−1)/Y·4TD/(XW) means Y − 1 ≤ (m/2)·F·W/C; in
    the backward pass the left side doubles.
    """
    half_matrices = layer.block.matrices / 2 * {"forward": 1, "backward": 2}[phase]
    a = layer.tokens * layer.bytes_per_s / layer.flops_per_s
    return a, half_matrices * layer.block.d_ff * layer.bytes_per_s / layer.flops_per_s


def _whole_split(a: float, b: float, y: float) -> tuple[int, int]:
    """Return the integers X and Y with the largest product for b ≤ a, searched around Y = y."""
    reach = math.sqrt(1 + y) + 1
    tried = range(max(1, math.floor(y - reach)), min(math.floor(1 + b), math.ceil(y + reach)) + 1)
    return max(((math.floor(1 + a * (1 - (each - 1) / b)), each) for each in tried), key=math.prod)
