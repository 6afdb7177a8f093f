import pytest
import torch
from torch import nn

from pipeline.instruments.profilers.module_ranges import module_ranges


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


def test_parts_and_the_parts_of_layers_are_ranges_inside_each_other_and_nothing_is_left_on_the_model(opened):
    model = Model()
    with module_ranges(model):
        model(torch.tensor([1, 2]))
    model(torch.tensor([1, 2]))
    block = [(1, "norm"), (1, "linear")]
    assert opened == [(0, "embedding"), (0, "layers.0"), *block, (0, "layers.1"), *block]


@pytest.mark.usefixtures("opened")  # which looks whether all are closed
def test_a_forward_pass_that_raises_leaves_no_range_open():
    with module_ranges(model := Model(fails=True)), pytest.raises(RuntimeError, match="no luck"):
        model(torch.tensor([1, 2]))
