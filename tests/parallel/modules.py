"""Modules that go wrong."""

import torch
from torch import nn
from torch.nn import functional


class Breaks(torch.autograd.Function):
    """Passes its input on; its backward pass fails."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise MemoryError("halfway")


class Lookup(nn.Module):
    """An embedding as a function, of which nothing tells beforehand that its gradient will be sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, indices):
        return functional.embedding(indices, self.table, sparse=True)
