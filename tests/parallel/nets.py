"""The net for tests of replicated and sharded training, and its data."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .modules import Breaks

ROWS = 12


class CourseLinear(nn.Module):
    """A linear layer that is not torch's."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) / inputs**0.5)

    def forward(self, x):
        return x @ self.weight.T


class Block(nn.Module):
    """A block with a norm and a bias; it takes a keyword argument and returns it in a dict with its output."""

    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = CourseLinear(hidden, width)

    def forward(self, x, *, scale):
        return {"out": x + scale * self.down(torch.tanh(self.up(self.norm(x)))), "given": scale}


class Net(nn.Module):
    """An embedding, blocks (the middle one is the largest part), a frozen layer, buffers, branches, a head."""

    def __init__(self, seed=0, tied=False, checkpointed=0, reentrant=False, dtype=torch.float64):
        super().__init__()
        torch.manual_seed(seed)
        self.checkpointed, self.reentrant = checkpointed, reentrant
        self.embedding = nn.Embedding(11, 5)
        self.blocks = nn.ModuleList(Block(5, hidden) for hidden in (7, 6, 160, 3, 8))
        self.frozen = nn.Linear(5, 5, bias=False).requires_grad_(False)
        self.branches = nn.ModuleList(nn.Linear(5, 5) for _ in range(2))
        self.head = nn.Linear(5, 11, bias=False)
        self.scale = nn.Parameter(torch.ones(1))
        self.fixed = nn.Parameter(torch.ones(1), requires_grad=False)
        self.register_buffer("offset", torch.randn(5))
        self.register_buffer("count", torch.tensor(seed, dtype=torch.int16))
        if tied:
            self.head.weight = self.embedding.weight
        self.to(dtype)

    def _run(self, blocks, x):
        for block in blocks:
            x = block(x, scale=self.scale)["out"]
        return x

    def forward(self, tokens, branches=(), breaks_behind=None):
        x = self.embedding(tokens)
        x = Breaks.apply(x) if breaks_behind == "embedding" else x
        step = self.checkpointed or len(self.blocks)
        for start in range(0, len(self.blocks), step):
            blocks = self.blocks[start : start + step]
            if self.checkpointed:
                x = checkpoint(self._run, blocks, x, use_reentrant=self.reentrant)
            else:
                x = self._run(blocks, x)
        x = self.frozen(x) * self.fixed + self.offset
        # The same layer twice.
        for branch in (*branches, *branches):
            x = x + self.branches[branch](x)
        return self.head(torch.tanh(Breaks.apply(x) if breaks_behind == "branches" else x))


def by_block(module):
    return isinstance(module, Block | nn.Embedding | nn.Linear)


def data(step=0):
    return torch.randint(11, (ROWS, 2), generator=torch.Generator().manual_seed(step))


def loss(output):
    return (output.square() + output).mean()


def share(context, batch):
    return batch.chunk(context.world_size)[context.rank]


def go_backward(model, batch, breaks_behind=None):
    failing = loss(model(batch, (0,), breaks_behind))
    with pytest.raises(MemoryError, match="halfway") if breaks_behind else nullcontext():
        failing.backward()
