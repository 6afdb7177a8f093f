"""Split each fp32 tensor into three bf16 tensors that add up to it, for kernels that multiply in parts."""

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from pipeline.attention.inputs import Traits
from pipeline.attention.triton.direct_launch import ELEMENTWISE, Launch, heads, prepare_launch, strides
from pipeline.attention.triton.kernels.parts import PARTS, ROWS_PER_PROGRAM, parts_kernel


@dataclass(frozen=True)
class InParts:
    """The launches that split tensors of given traits, and the shapes of the parts."""

    shapes: tuple[tuple[int, ...], ...]
    launches: tuple[Launch, ...]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Return the parts of each tensor, of shape (3, matrices, rows, head_dim)."""
        found = [torch.empty(shape, dtype=torch.bfloat16, device=tensors[0].device) for shape in self.shapes]
        for launch, tensor, parts in zip(self.launches, tensors, found, strict=True):
            launch(tensor, parts)
        return found


def in_parts_of(*given: Traits) -> InParts:
    """Plan how to split tensors of these traits, whose rows are contiguous."""
    shapes = tuple((PARTS.value, math.prod(each.shape[:-2]), *each.shape[-2:]) for each in given)
    return InParts(shapes, tuple(map(_launch, given, shapes)))


def _launch(given: Traits, shape: tuple[int, ...]) -> Launch:
    _, matrices, rows, head_dim = shape
    return prepare_launch(
        parts_kernel,
        matrices * triton.cdiv(rows, ROWS_PER_PROGRAM.value),
        [torch.float32, torch.bfloat16],
        [*strides(given), heads(given), matrices, rows],
        {"HEAD_DIM": head_dim},
        ELEMENTWISE,
    )
