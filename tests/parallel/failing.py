"""A backward pass that fails halfway."""

import torch


class Breaks(torch.autograd.Function):
    """Passes its input on; its backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise MemoryError("halfway")
