"""Modules that fail, or are easy to get wrong."""

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


class Boxed(nn.Module):
    def __init__(self, box, width):
        super().__init__()
        self.box, self.layer = box, nn.Linear(width, width)

    def forward(self, x):
        y = self.layer(x)
        return self.box(out=y, more={"twice": 2 * y})


class Unboxing(nn.Module):
    """Boxed layers, with operations between them."""

    def __init__(self, box, width):
        super().__init__()
        self.layers = nn.ModuleList(Boxed(box, width) for _ in range(4))

    def forward(self, x):
        for layer in self.layers:
            box = layer(x)
            x = torch.tanh(box.out) + box.more["twice"]
        return x


class Lookup(nn.Module):
    """A functional embedding: nothing shows beforehand that its gradient will be sparse."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.ones(4, 2))

    def forward(self, indices):
        return functional.embedding(indices, self.table, sparse=True)
