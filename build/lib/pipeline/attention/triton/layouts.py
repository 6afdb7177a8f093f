"""How tensors lie in memory, and which of them the Triton kernels read a copy of.

The kernels read rows whose elements lie side by side, from addresses that are aligned. Of every other tensor they read
a contiguous copy, so what is planned for it must follow from the strides of the copy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT_BYTES = 16  # of what tensor descriptors point to, and of what the kernels are compiled for

# A tensor's strides; None where its address is not aligned, for then they do not matter.
Layout = tuple[int, ...] | None


def layouts_of(*tensors: Tensor) -> tuple[Layout, ...]:
    """Return how tensors lie in memory."""
    return tuple(tensor.stride() if _is_aligned(tensor) else None for tensor in tensors)


def copies_of(layouts: Sequence[Layout]) -> tuple[bool, ...] | None:
    """Tell which of these tensors must be copied; None where none must."""
    found = tuple(map(_must_be_copied, layouts))
    return found if any(found) else None


def strides_read(shape: torch.Size, layout: Layout) -> tuple[int, ...]:
    """Return the strides of what the kernels read: the tensor, or its copy."""
    return torch.empty(shape, device="meta").stride() if layout is None or _must_be_copied(layout) else layout


def ready(are_copied: Sequence[bool], *tensors: Tensor) -> list[Tensor]:
    """Return the tensors as the kernels read them, those that must be copied as contiguous copies."""
    return [_copy(tensor) if is_copied else tensor for is_copied, tensor in zip(are_copied, tensors, strict=True)]


def dense(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors contiguous and aligned, as what the kernels wrote was."""
    return [tensor if tensor.is_contiguous() and _is_aligned(tensor) else _copy(tensor) for tensor in tensors]


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def _must_be_copied(layout: Layout) -> bool:
    return layout is None or layout[-1:] != (1,)  # a tensor of no dimensions gets as far as this too


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
