"""Describe how tensors are laid out in memory, and decide which of them the Triton kernels read from a copy.

The kernels read contiguous rows from aligned addresses. They read every other tensor from a contiguous copy, so its
plan must use the strides of the copy.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

ALIGNMENT_BYTES = 16  # required by tensor descriptors, and assumed when kernels are compiled

# A tensor's strides; None if its address is not aligned: it is copied whatever its strides.
Layout = tuple[int, ...] | None


def layouts_of(*tensors: Tensor) -> tuple[Layout, ...]:
    """Return the tensors' layouts."""
    return tuple(tensor.stride() if _is_aligned(tensor) else None for tensor in tensors)


def copies_of(layouts: Sequence[Layout]) -> tuple[bool, ...] | None:
    """Tell which of these tensors must be copied; None if none must."""
    found = tuple(map(_must_be_copied, layouts))
    return found if any(found) else None


def strides_read(shape: torch.Size, layout: Layout) -> tuple[int, ...]:
    """Return the strides of what the kernels read: the tensor, or its copy."""
    return torch.empty(shape, device="meta").stride() if layout is None or _must_be_copied(layout) else layout


def ready(are_copied: Sequence[bool], *tensors: Tensor) -> list[Tensor]:
    """Return the tensors as the kernels read them: contiguous copies of those that must be copied."""
    return [_copy(tensor) if is_copied else tensor for is_copied, tensor in zip(are_copied, tensors, strict=True)]


def dense(*tensors: Tensor) -> list[Tensor]:
    """Return the tensors contiguous and aligned, as the kernels wrote them; copy only where needed."""
    return [tensor if tensor.is_contiguous() and _is_aligned(tensor) else _copy(tensor) for tensor in tensors]


def _is_aligned(tensor: Tensor) -> bool:
    return tensor.data_ptr() % ALIGNMENT_BYTES == 0


def _must_be_copied(layout: Layout) -> bool:
    return layout is None or layout[-1:] != (1,)  # slicing, because a 0-d tensor gets here too


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)
