from contextlib import contextmanager

import pytest
import torch
from torch import nn

from pipeline.instruments.profilers.module_ranges import module_ranges
from pipeline.ranges import listening


class Block(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.norm, self.linear, self.fails = nn.LayerNorm(4), nn.Linear(4, 4), fails

    def forward(self, x):
        if self.fails:
            raise RuntimeError("no luck")
        return x + self.linear(self.norm(x))


class Model(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.layers = nn.ModuleList([Block(), Block(fails)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def record():
    """Listen to ranges, and return a function that tells each one's depth and name, in order."""
    seen, depth = [], [0]

    @contextmanager
    def listen(name):
        seen.append((depth[0], name))
        depth[0] += 1
        yield
        depth[0] -= 1

    with listening(listen):
        yield lambda: (seen, depth[0])


def test_parts_and_the_parts_of_layers_are_ranges_inside_each_other_and_nothing_is_left_on_the_model(record):
    model = Model()
    with module_ranges(model):
        model(torch.tensor([1, 2]))
    model(torch.tensor([1, 2]))
    block = [(1, "norm"), (1, "linear")]
    assert record() == ([(0, "embedding"), (0, "layers.0"), *block, (0, "layers.1"), *block], 0)


def test_a_forward_pass_that_raises_leaves_no_range_open(record):
    model = Model(fails=True)
    with module_ranges(model), pytest.raises(RuntimeError, match="no luck"):
        model(torch.tensor([1, 2]))
    assert record()[1] == 0
