"""Times of the forward pass of feed-forward blocks on a mesh of devices: X-way FSDP by Y-way tensor parallelism.

Source: "How to Scale Your Model" (Austin et al. 2025, jax-ml.github.io/scaling-book), chapter on training. Its symbols:
T (there B) the batch in tokens; W the bandwidth of a link in both directions; C a device's FLOP/s; M_X and M_Y the
number of torus axes for FSDP and for tensor parallelism; α = C / W. Times are for one block of m matrices D × F.
"""

import math
from dataclasses import dataclass

from pipeline.formulas.units import BF16_BYTES


@dataclass(frozen=True)
class Block:
    """A feed-forward block: two matrices, D to F and back, or three with SwiGLU's gate."""

    d_model: int
    d_ff: int
    matrices: int = 2

    @property
    def weights(self) -> int:
        """Count the elements of its matrices: m·D·F."""
        return self.matrices * self.d_model * self.d_ff


@dataclass(frozen=True)
class Mesh:
    """A mesh and its devices. `axes_overlap`: transfers along X and along Y run at the same time."""

    fsdp_size: float
    tensor_size: float
    fsdp_axes: int
    tensor_axes: int
    link_bytes_per_s: float
    flops_per_s: float
    weight_bytes: int = BF16_BYTES
    axes_overlap: bool = False

    @property
    def num_devices(self) -> float:
        """Count the devices: X·Y."""
        return self.fsdp_size * self.tensor_size

    @property
    def intensity(self) -> float:
        """Return α = C / W: the FLOPs that a device does while it receives one byte."""
        return self.flops_per_s / self.link_bytes_per_s


def block_s(block: Block, tokens: float, mesh: Mesh) -> dict[str, float]:
    """Return the times of one block's forward pass over all devices, in seconds.

    compute: its products, 2·m·T·D·F / (X·Y·C). fsdp: gathering its weights over X, m·w·D·F / (Y·W·M_X) with w bytes per
    weight; each device gathers 1/Y of them, whatever X is. tensor: gathering its input and scattering its output over Y
    in bf16, 2·2·T·D / (X·W·M_Y). communication: both transfers, the longer one where the axes overlap, else their sum.
    """
    gathered_bytes = mesh.weight_bytes * block.weights / mesh.tensor_size
    moved_bytes = 2 * BF16_BYTES * tokens * block.d_model / mesh.fsdp_size
    fsdp_s = gathered_bytes / (mesh.link_bytes_per_s * mesh.fsdp_axes)
    tensor_s = moved_bytes / (mesh.link_bytes_per_s * mesh.tensor_axes)
    return {
        "compute": 2 * tokens * block.weights / (mesh.num_devices * mesh.flops_per_s),
        "fsdp": fsdp_s,
        "tensor": tensor_s,
        "communication": max(fsdp_s, tensor_s) if mesh.axes_overlap else fsdp_s + tensor_s,
    }


def least_tokens(block: Block, mesh: Mesh) -> float:
    """Return the batch T over all devices at which computing takes as long as communicating; infinite if none does.

    T_math = T_fsdp + T_tensor, solved for T: T = r / (1 − t) with r = (w / 2)·X·α / M_X, and t = 2·Y·α / (m·F·M_Y), the
    time of the tensor-parallel transfers over that of computing. If the axes overlap, T = r as long as t ≤ 1. The
    width D cancels. If t reaches 1, no batch is compute bound.
    """
    weights_tokens = mesh.weight_bytes / 2 * mesh.fsdp_size * mesh.intensity / mesh.fsdp_axes
    tensor_share = mesh.tensor_size / _largest_tensor_size(block, mesh)
    if mesh.axes_overlap:
        return weights_tokens if tensor_share <= 1 else math.inf
    return weights_tokens / (1 - tensor_share) if tensor_share < 1 else math.inf


def best_tensor_size(block: Block, mesh: Mesh) -> float:
    """Return the Y, not rounded, for which the batch per device T / (X·Y) is least.

    T / (X·Y) = (w / 2)·α / (M_X·Y·(1 − t)) is least where Y·(1 − t) is largest, at t = 1/2: Y = m·F·M_Y / (4·α).
    If the axes overlap, at t = 1: twice that.
    """
    largest = _largest_tensor_size(block, mesh)
    return largest if mesh.axes_overlap else largest / 2


def _largest_tensor_size(block: Block, mesh: Mesh) -> float:
    """Return the Y at which the tensor-parallel transfers alone take as long as computing: m·F·M_Y / (2·α)."""
    return block.matrices * block.d_ff * mesh.tensor_axes / (2 * mesh.intensity)
