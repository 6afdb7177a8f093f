"""Torch's private names of what belongs to a tensor, which nothing public tells."""

from torch import Tensor


def has_gradient_hooks(tensor: Tensor) -> bool:
    """Tell whether `register_hook` or `register_post_accumulate_grad_hook` of a tensor was called."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def base_of(tensor: Tensor) -> Tensor:
    """Return the tensor that a view looks into; itself if it is no view."""
    return tensor if tensor._base is None else tensor._base
