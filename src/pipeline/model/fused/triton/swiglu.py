"""SwiGLU's product silu(gate) · up in Triton; the backward pass computes it again along with the gradients.

Source: Shazeer 2020, equation 6. With σ = sigmoid(gate): dup = dh · gate · σ, and
dgate = dh · up · σ · (1 + gate · (1 − σ)).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 2048
WARPS = 4


@triton.jit
def swiglu_forward_kernel(gate_ptr, up_ptr, h_ptr, count, BLOCK: tl.constexpr):
    """Compute silu(gate) · up of a block of numbers."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = places < count
    gate = tl.load(gate_ptr + places, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + places, mask=exists, other=0.0).to(tl.float32)
    tl.store(h_ptr + places, gate * tl.sigmoid(gate) * up, mask=exists)


@triton.jit
def swiglu_backward_kernel(
    dh_ptr, gate_ptr, up_ptr, dgate_ptr, dup_ptr, count, BLOCK: tl.constexpr, PRODUCT: tl.constexpr
):
    """Compute the gradients of gate and up; with PRODUCT, overwrite dh with silu(gate) · up."""
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exists = places < count
    dh = tl.load(dh_ptr + places, mask=exists, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + places, mask=exists, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + places, mask=exists, other=0.0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    if PRODUCT:
        tl.store(dh_ptr + places, silu * up, mask=exists)
    tl.store(dgate_ptr + places, dh * up * sigmoid * (1 + gate * (1 - sigmoid)), mask=exists)
    tl.store(dup_ptr + places, dh * silu, mask=exists)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) · up; both must be contiguous and have the same shape."""
    h = torch.empty_like(gate)
    count = gate.numel()
    swiglu_forward_kernel[(triton.cdiv(count, BLOCK),)](gate, up, h, count, BLOCK=BLOCK, num_warps=WARPS)
    return h


def swiglu_backward(
    dh: Tensor, gate: Tensor, up: Tensor, in_place: bool = False, product: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu(gate) · up, which overwrites its gradient `dh`, and the gradients of gate and up.

    in_place: the gradients overwrite gate and up. Without `product`, `dh` is returned unchanged.
    """
    dgate, dup = (gate, up) if in_place else (torch.empty_like(gate), torch.empty_like(gate))
    count = gate.numel()
    programs = triton.cdiv(count, BLOCK)
    constants = {"BLOCK": BLOCK, "PRODUCT": product, "num_warps": WARPS}
    swiglu_backward_kernel[(programs,)](dh, gate, up, dgate, dup, count, **constants)
    return dh, dgate, dup
